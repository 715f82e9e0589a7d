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
INSERT INTO entry_types VALUES(1, 'Weight');
INSERT INTO entry_types VALUES(2, 'Activation');
INSERT INTO misc_sizes VALUES('peak_usage_bytes', 48671232);
PRAGMA user_version=1;
