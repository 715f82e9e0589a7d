CREATE TABLE weight_entries (
        id INTEGER PRIMARY KEY,
        name TEXT NOT NULL,
        size_bytes INTEGER NOT NULL,
        grad_size_bytes INTEGER NOT NULL
      );
CREATE TABLE activation_entries (
        id INTEGER PRIMARY KEY,
        operation_name TEXT NOT NULL,
        size_bytes INTEGER NOT NULL
      );
CREATE TABLE stack_correlation (
        correlation_id INTEGER PRIMARY KEY,
        entry_id INTEGER NOT NULL,
        entry_type INTEGER NOT NULL,
        UNIQUE (correlation_id, entry_id)
      );
CREATE UNIQUE INDEX entry_type_and_id
        ON stack_correlation(entry_type, entry_id)
    ;
CREATE TABLE stack_frames (
        correlation_id INTEGER NOT NULL,
        ordering INTEGER NOT NULL,
        file_path TEXT NOT NULL,
        line_number INTEGER NOT NULL,
        PRIMARY KEY (correlation_id, ordering)
      );
CREATE TABLE entry_types (
        entry_type INTEGER PRIMARY KEY,
        name TEXT NOT NULL
      );
CREATE TABLE misc_sizes (
        key TEXT PRIMARY KEY,
        size_bytes INT NOT NULL
      );
INSERT INTO weight_entries VALUES(1, 'train.py:48#1', 3136000, 3136000);
INSERT INTO weight_entries VALUES(2, 'train.py:48#2', 4000, 4000);
INSERT INTO weight_entries VALUES(3, 'train.py:48#3', 40000, 40000);
INSERT INTO weight_entries VALUES(4, 'train.py:48#4', 40, 40);
INSERT INTO activation_entries VALUES(1, 'cross_entropy', 512);
INSERT INTO activation_entries VALUES(2, 'cross_entropy', 512);
INSERT INTO activation_entries VALUES(3, 'cross_entropy', 120320);
INSERT INTO activation_entries VALUES(4, 'linear', 120320);
INSERT INTO activation_entries VALUES(5, 'relu', 12582912);
INSERT INTO stack_correlation VALUES(1, 1, 1);
INSERT INTO stack_correlation VALUES(2, 2, 1);
INSERT INTO stack_correlation VALUES(3, 3, 1);
INSERT INTO stack_correlation VALUES(4, 4, 1);
INSERT INTO stack_correlation VALUES(5, 1, 2);
INSERT INTO stack_correlation VALUES(6, 2, 2);
INSERT INTO stack_correlation VALUES(7, 3, 2);
INSERT INTO stack_correlation VALUES(8, 4, 2);
INSERT INTO stack_correlation VALUES(9, 5, 2);
INSERT INTO stack_frames VALUES(1, 0, 'train.py', 48);
INSERT INTO stack_frames VALUES(1, 1, 'train.py', 61);
INSERT INTO stack_frames VALUES(2, 0, 'train.py', 48);
INSERT INTO stack_frames VALUES(2, 1, 'train.py', 61);
INSERT INTO stack_frames VALUES(3, 0, 'train.py', 48);
INSERT INTO stack_frames VALUES(3, 1, 'train.py', 61);
INSERT INTO stack_frames VALUES(4, 0, 'train.py', 48);
INSERT INTO stack_frames VALUES(4, 1, 'train.py', 61);
INSERT INTO stack_frames VALUES(5, 0, 'train.py', 35);
INSERT INTO stack_frames VALUES(5, 1, 'train.py', 52);
INSERT INTO stack_frames VALUES(5, 2, 'train.py', 61);
INSERT INTO stack_frames VALUES(6, 0, 'train.py', 35);
INSERT INTO stack_frames VALUES(6, 1, 'train.py', 52);
INSERT INTO stack_frames VALUES(6, 2, 'train.py', 61);
INSERT INTO stack_frames VALUES(7, 0, 'train.py', 35);
INSERT INTO stack_frames VALUES(7, 1, 'train.py', 52);
INSERT INTO stack_frames VALUES(7, 2, 'train.py', 61);
INSERT INTO stack_frames VALUES(8, 0, 'model/perceptron.py', 15);
INSERT INTO stack_frames VALUES(8, 1, 'train.py', 34);
INSERT INTO stack_frames VALUES(8, 2, 'train.py', 52);
INSERT INTO stack_frames VALUES(8, 3, 'train.py', 61);
INSERT INTO stack_frames VALUES(9, 0, 'model/perceptron.py', 14);
INSERT INTO stack_frames VALUES(9, 1, 'train.py', 34);
INSERT INTO stack_frames VALUES(9, 2, 'train.py', 52);
INSERT INTO stack_frames VALUES(9, 3, 'train.py', 61);
INSERT INTO entry_types VALUES(1, 'Weight');
INSERT INTO entry_types VALUES(2, 'Activation');
INSERT INTO misc_sizes VALUES('peak_usage_bytes', 73794560);
PRAGMA user_version=1;
