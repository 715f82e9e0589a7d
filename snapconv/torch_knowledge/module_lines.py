"""The lines of torch.nn's modules that call C++: files in which the line alone tells one module from another.

Made by scripts/read_torch_lines.py from torch 2.0.0, 2.0.1, 2.1.2, 2.2.2, 2.3.1, 2.4.1, 2.5.1, 2.6.0, 2.7.1,
2.8.0, 2.9.1, 2.10.0, 2.11.0, 2.12.0, 2.13.0, 2.14.1 and 2.15.0. Since 2.1 bug fix releases share the lines
of their minor release (2.1.0, 2.1.1, 2.2.0, 2.2.1, 2.3.0, 2.4.0, 2.5.0, 2.7.0 and 2.9.0 were compared).
"""

# Where module.py calls forward: a line of nearly every stack, and of another number in nearly every release.
CALLS: dict[str, tuple[int, ...]] = {
    "2.0.0": (1501, 1538),
    "2.0.1": (1501, 1538),
    "2.1": (1518, 1527, 1568),
    "2.2": (1511, 1520, 1561),
    "2.3": (1532, 1541, 1582),
    "2.4": (1553, 1562, 1603),
    "2.5": (1736, 1747, 1790, 1841, 1844),
    "2.6": (1739, 1750, 1793, 1842, 1845),
    "2.7": (1751, 1762, 1805, 1854, 1857),
    "2.8": (1773, 1784, 1827, 1876, 1879),
    "2.9": (1775, 1786, 1829, 1878, 1881),
    "2.10": (1776, 1787, 1830, 1879, 1882),
    "2.11": (1779, 1790, 1833, 1882, 1885),
    "2.12": (1778, 1789, 1832, 1881, 1884),
    "2.13": (1778, 1789, 1832, 1881, 1884),
    "2.14": (1783, 1794, 1837, 1886, 1889),
    "2.15": (1787, 1798, 1841, 1890, 1893),
}
# By file, for some releases each: the operations, and the lines that call them.
LINES: dict[str, tuple[tuple[str, dict[str, tuple[int, ...]]], ...]] = {
    "activation.py": (
        ("2.0.0", {
            "sigmoid": (295,), "tanh": (359,), "gelu": (685,), "hardshrink": (727,),
            "logsigmoid": (804,), "softplus": (843,), "softshrink": (883,), "prelu": (1309,)
        }),
        ("2.0.1", {
            "sigmoid": (295,), "tanh": (359,), "gelu": (685,), "hardshrink": (727,),
            "logsigmoid": (804,), "softplus": (843,), "softshrink": (883,), "prelu": (1332,)
        }),
        ("2.1 2.2", {
            "sigmoid": (292,), "tanh": (356,), "gelu": (682,), "hardshrink": (724,),
            "logsigmoid": (801,), "softplus": (840,), "softshrink": (880,), "prelu": (1364,)
        }),
        ("2.3", {
            "sigmoid": (292,), "tanh": (357,), "gelu": (696,), "hardshrink": (739,),
            "logsigmoid": (817,), "softplus": (859,), "softshrink": (900,), "prelu": (1391,)
        }),
        ("2.4", {
            "sigmoid": (301,), "tanh": (366,), "gelu": (705,), "hardshrink": (748,),
            "logsigmoid": (826,), "softplus": (868,), "softshrink": (909,), "prelu": (1400,)
        }),
        ("2.5", {
            "sigmoid": (327,), "tanh": (392,), "gelu": (734,), "hardshrink": (777,),
            "logsigmoid": (855,), "softplus": (897,), "softshrink": (938,), "prelu": (1512,)
        }),
        ("2.6 2.7", {
            "sigmoid": (327,), "tanh": (392,), "gelu": (734,), "hardshrink": (777,),
            "logsigmoid": (855,), "softplus": (897,), "softshrink": (938,), "prelu": (1517,)
        }),
        ("2.8", {
            "sigmoid": (329,), "tanh": (394,), "gelu": (738,), "hardshrink": (781,),
            "logsigmoid": (859,), "softplus": (901,), "softshrink": (942,), "prelu": (1524,)
        }),
        ("2.9", {
            "sigmoid": (359,), "tanh": (430,), "gelu": (816,), "hardshrink": (865,),
            "logsigmoid": (955,), "softplus": (1000,), "softshrink": (1047,), "prelu": (1638,)
        }),
        ("2.10", {
            "sigmoid": (358,), "tanh": (429,), "gelu": (815,), "hardshrink": (864,),
            "logsigmoid": (954,), "softplus": (999,), "softshrink": (1046,), "prelu": (1641,)
        }),
        ("2.11", {
            "sigmoid": (361,), "tanh": (432,), "gelu": (816,), "hardshrink": (865,),
            "logsigmoid": (955,), "softplus": (1000,), "softshrink": (1047,), "prelu": (1642,)
        }),
        ("2.12 2.13", {
            "sigmoid": (361,), "tanh": (432,), "gelu": (816,), "hardshrink": (865,),
            "logsigmoid": (955,), "softplus": (1000,), "softshrink": (1047,), "prelu": (1648,)
        }),
        ("2.14 2.15", {
            "sigmoid": (361,), "tanh": (433,), "gelu": (817,), "hardshrink": (866,), "logsigmoid":
            (956,), "softplus": (1001,), "softshrink": (1048,), "prelu": (1649,)
        }),
    ),
    "channelshuffle.py": (
        ("2.0.0 2.0.1 2.1 2.4", {"channel_shuffle": (51,)}),
        ("2.2 2.3", {"channel_shuffle": (54,)}),
        ("2.5 2.6 2.7 2.8", {"channel_shuffle": (53,)}),
        ("2.9 2.10 2.11 2.12 2.13 2.14 2.15", {"channel_shuffle": (56,)}),
    ),
    "conv.py": (
        ("2.0.0 2.0.1", {
            "conv1d": (309,), "conv2d": (459,), "conv3d": (597, 608), "conv_transpose1d":
            (801,), "conv_transpose2d": (956,), "conv_transpose3d": (1108,)
        }),
        ("2.1 2.2 2.3", {
            "conv1d": (306,), "conv2d": (456,), "conv3d": (594, 605), "conv_transpose1d":
            (797,), "conv_transpose2d": (952,), "conv_transpose3d": (1104,)
        }),
        ("2.4", {
            "conv1d": (304,), "conv2d": (454,), "conv3d": (592, 603), "conv_transpose1d":
            (793,), "conv_transpose2d": (948,), "conv_transpose3d": (1100,)
        }),
        ("2.5 2.6 2.7", {
            "conv1d": (359, 370), "conv2d": (538, 549), "conv3d": (709, 720),
            "conv_transpose1d": (974,), "conv_transpose2d": (1162,), "conv_transpose3d": (1347,)
        }),
        ("2.8 2.9", {
            "conv1d": (355, 366), "conv2d": (532, 543), "conv3d": (701, 712),
            "conv_transpose1d": (964,), "conv_transpose2d": (1161,), "conv_transpose3d": (1344,)
        }),
        ("2.10", {
            "conv1d": (358, 370), "conv2d": (536, 548), "conv3d": (706, 718),
            "conv_transpose1d": (987,), "conv_transpose2d": (1184,), "conv_transpose3d": (1367,)
        }),
        ("2.11", {
            "conv1d": (358, 370), "conv2d": (536, 548), "conv3d": (706, 718),
            "conv_transpose1d": (988,), "conv_transpose2d": (1186,), "conv_transpose3d": (1370,)
        }),
        ("2.12 2.13 2.14 2.15", {
            "conv1d": (368, 380), "conv2d": (548, 560), "conv3d": (718, 730),
            "conv_transpose1d": (1000,), "conv_transpose2d": (1198,), "conv_transpose3d":
            (1382,)
        }),
    ),
    "distance.py": (
        ("2.0.0 2.0.1 2.1", {"pairwise_distance": (53,), "cosine_similarity": (87,)}),
        ("2.2 2.3 2.4", {"pairwise_distance": (54,), "cosine_similarity": (89,)}),
        ("2.5 2.6 2.7", {"pairwise_distance": (58,), "cosine_similarity": (93,)}),
        ("2.8", {"pairwise_distance": (58,), "cosine_similarity": (94,)}),
        ("2.9 2.10 2.11 2.12 2.13 2.14 2.15", {"pairwise_distance": (61,), "cosine_similarity": (100,)}),
    ),
    "flatten.py": (
        ("2.0.0 2.0.1", {"flatten": (46,)}),
        ("2.1", {"flatten": (47,)}),
        ("2.2 2.3", {"flatten": (49,)}),
        ("2.4", {"flatten": (50,)}),
        ("2.5 2.6 2.7 2.8", {"flatten": (53,)}),
        ("2.9", {"flatten": (56,)}),
        ("2.10 2.11 2.12 2.13 2.14 2.15", {"flatten": (55,)}),
    ),
    "linear.py": (
        ("2.0.0 2.0.1 2.2 2.3", {"bilinear": (200,)}),
        ("2.1", {"bilinear": (198,)}),
        ("2.4", {"bilinear": (201,)}),
        ("2.5 2.6 2.7", {"bilinear": (225,)}),
        ("2.8", {"bilinear": (227,)}),
        ("2.9", {"bilinear": (245,)}),
        ("2.10 2.11 2.12 2.13 2.14 2.15", {"bilinear": (247,)}),
    ),
    "pixelshuffle.py": (
        ("2.0.0 2.0.1 2.1", {"pixel_shuffle": (54,), "pixel_unshuffle": (104,)}),
        ("2.2 2.3 2.4", {"pixel_shuffle": (57,), "pixel_unshuffle": (110,)}),
        ("2.5 2.6 2.7 2.8", {"pixel_shuffle": (59,), "pixel_unshuffle": (112,)}),
        ("2.9 2.10 2.11 2.12 2.13 2.14 2.15", {"pixel_shuffle": (62,), "pixel_unshuffle": (121,)}),
    ),
    "pooling.py": (
        ("2.0.0 2.0.1", {
            "avg_pool1d": (559,), "avg_pool2d": (639,), "avg_pool3d": (725,),
            "adaptive_avg_pool1d": (1157,)
        }),
        ("2.1", {
            "avg_pool1d": (555,), "avg_pool2d": (635,), "avg_pool3d": (721,),
            "adaptive_avg_pool1d": (1155,)
        }),
        ("2.2", {
            "avg_pool1d": (551,), "avg_pool2d": (631,), "avg_pool3d": (717,),
            "adaptive_avg_pool1d": (1151,)
        }),
        ("2.3 2.4", {
            "avg_pool1d": (555,), "avg_pool2d": (641,), "avg_pool3d": (733,),
            "adaptive_avg_pool1d": (1228,)
        }),
        ("2.5 2.6 2.7", {
            "avg_pool1d": (651,), "avg_pool2d": (756,), "avg_pool3d": (869,),
            "adaptive_avg_pool1d": (1416,)
        }),
        ("2.8", {
            "avg_pool1d": (665,), "avg_pool2d": (773,), "avg_pool3d": (889,),
            "adaptive_avg_pool1d": (1436,)
        }),
        ("2.9", {
            "avg_pool1d": (672,), "avg_pool2d": (781,), "avg_pool3d": (898,),
            "adaptive_avg_pool1d": (1460,)
        }),
        ("2.10 2.11 2.12", {
            "avg_pool1d": (670,), "avg_pool2d": (779,), "avg_pool3d": (896,),
            "adaptive_avg_pool1d": (1470,)
        }),
        ("2.13", {
            "avg_pool1d": (670,), "avg_pool2d": (779,), "avg_pool3d": (896,),
            "adaptive_avg_pool1d": (1472,)
        }),
        ("2.14 2.15", {
            "avg_pool1d": (670,), "avg_pool2d": (779,), "avg_pool3d": (896,), "adaptive_avg_pool1d":
            (1474,)
        }),
    ),
    "rnn.py": (
        ("2.0.0 2.0.1", {
            "index_select": (24,), "zeros": (496, 785, 788, 988, 1132, 1232, 1323), "rnn_tanh":
            (509, 518), "rnn_relu": (513, 522), "lstm": (812, 815), "gru": (998, 1001),
            "rnn_tanh_cell": (1137,), "rnn_relu_cell": (1143,), "lstm_cell": (1237,),
            "gru_cell": (1327,)
        }),
        ("2.1", {
            "index_select": (24,), "zeros": (512, 540, 832, 835, 854, 857, 1063, 1092, 1238,
            1342, 1435), "rnn_tanh": (553, 562), "rnn_relu": (557, 566), "lstm": (879, 882),
            "gru": (1102, 1105), "rnn_tanh_cell": (1243,), "rnn_relu_cell": (1249,),
            "lstm_cell": (1347,), "gru_cell": (1439,)
        }),
        ("2.2", {
            "index_select": (24,), "zeros": (513, 541, 831, 834, 853, 856, 1061, 1090, 1237,
            1341, 1434), "rnn_tanh": (554, 563), "rnn_relu": (558, 567), "lstm": (878, 881),
            "gru": (1100, 1103), "rnn_tanh_cell": (1242,), "rnn_relu_cell": (1248,),
            "lstm_cell": (1346,), "gru_cell": (1438,)
        }),
        ("2.3", {
            "index_select": (24,), "zeros": (545, 573, 863, 866, 885, 888, 1094, 1123, 1270,
            1374, 1467), "rnn_tanh": (586, 595), "rnn_relu": (590, 599), "lstm": (911, 914),
            "gru": (1133, 1136), "rnn_tanh_cell": (1275,), "rnn_relu_cell": (1281,),
            "lstm_cell": (1379,), "gru_cell": (1471,)
        }),
        ("2.4", {
            "index_select": (26,), "zeros": (551, 579, 869, 872, 891, 894, 1100, 1129, 1276,
            1380, 1473), "rnn_tanh": (592, 601), "rnn_relu": (596, 605), "lstm": (917, 920),
            "gru": (1139, 1142), "rnn_tanh_cell": (1281,), "rnn_relu_cell": (1287,),
            "lstm_cell": (1385,), "gru_cell": (1477,)
        }),
        ("2.5", {
            "index_select": (37,), "zeros": (661, 697, 1053, 1060, 1085, 1092, 1341, 1378, 1575,
            1698, 1806), "rnn_tanh": (714, 739), "rnn_relu": (726, 751), "lstm": (1123, 1135),
            "gru": (1392, 1404), "rnn_tanh_cell": (1582,), "rnn_relu_cell": (1591,),
            "lstm_cell": (1705,), "gru_cell": (1812,)
        }),
        ("2.6 2.7", {
            "index_select": (37,), "zeros": (663, 699, 1054, 1061, 1086, 1093, 1342, 1379, 1576,
            1699, 1807), "rnn_tanh": (716, 741), "rnn_relu": (728, 753), "lstm": (1124, 1136),
            "gru": (1393, 1405), "rnn_tanh_cell": (1583,), "rnn_relu_cell": (1592,),
            "lstm_cell": (1706,), "gru_cell": (1813,)
        }),
        ("2.8", {
            "index_select": (37,), "zeros": (665, 701, 1054, 1061, 1086, 1093, 1340, 1377, 1574,
            1697, 1805), "rnn_tanh": (718, 743), "rnn_relu": (730, 755), "lstm": (1124, 1136),
            "gru": (1391, 1403), "rnn_tanh_cell": (1581,), "rnn_relu_cell": (1590,),
            "lstm_cell": (1704,), "gru_cell": (1811,)
        }),
        ("2.9", {
            "index_select": (37,), "zeros": (668, 704, 1057, 1064, 1089, 1096, 1343, 1380, 1577,
            1700, 1808), "rnn_tanh": (721, 746), "rnn_relu": (733, 758), "lstm": (1127, 1139),
            "gru": (1394, 1406), "rnn_tanh_cell": (1584,), "rnn_relu_cell": (1593,),
            "lstm_cell": (1707,), "gru_cell": (1814,)
        }),
        ("2.10", {
            "index_select": (37,), "zeros": (675, 711, 1071, 1078, 1103, 1110, 1364, 1401, 1601,
            1724, 1832), "rnn_tanh": (728, 753), "rnn_relu": (740, 765), "lstm": (1141, 1153),
            "gru": (1415, 1427), "rnn_tanh_cell": (1608,), "rnn_relu_cell": (1617,),
            "lstm_cell": (1731,), "gru_cell": (1838,)
        }),
        ("2.11", {
            "index_select": (37,), "zeros": (691, 727, 1098, 1105, 1130, 1137, 1397, 1434, 1637,
            1760, 1868), "rnn_tanh": (747, 774), "rnn_relu": (760, 787), "lstm": (1169, 1182),
            "gru": (1449, 1462), "rnn_tanh_cell": (1644,), "rnn_relu_cell": (1653,),
            "lstm_cell": (1767,), "gru_cell": (1874,)
        }),
        ("2.12", {
            "index_select": (37,), "zeros": (688, 724, 1091, 1098, 1123, 1130, 1386, 1423, 1625,
            1748, 1856), "rnn_tanh": (744, 771), "rnn_relu": (757, 784), "lstm": (1162, 1175),
            "gru": (1438, 1451), "rnn_tanh_cell": (1632,), "rnn_relu_cell": (1641,),
            "lstm_cell": (1755,), "gru_cell": (1862,)
        }),
        ("2.13 2.14", {
            "index_select": (37,), "zeros": (689, 725, 1093, 1100, 1125, 1132, 1388, 1425, 1627,
            1750, 1858), "rnn_tanh": (745, 772), "rnn_relu": (758, 785), "lstm": (1164, 1177),
            "gru": (1440, 1453), "rnn_tanh_cell": (1634,), "rnn_relu_cell": (1643,),
            "lstm_cell": (1757,), "gru_cell": (1864,)
        }),
        ("2.15", {
            "index_select": (37,), "zeros": (690, 726, 1094, 1101, 1126, 1133, 1389, 1426, 1628,
            1751, 1859), "rnn_tanh": (746, 773), "rnn_relu": (759, 786), "lstm": (1165, 1178),
            "gru": (1441, 1454), "rnn_tanh_cell": (1635,), "rnn_relu_cell": (1644,), "lstm_cell":
            (1758,), "gru_cell": (1865,)
        }),
    ),
    "transformer.py": (
        ("2.0.0", {
            "logical_not": (249, 287), "triu": (296,), "to": (298,), "add": (570, 571, 573, 574,
            694, 695, 696, 698, 699, 700)
        }),
        ("2.0.1", {
            "logical_not": (258, 296), "triu": (305,), "to": (307,), "add": (588, 589, 591, 592,
            712, 713, 714, 716, 717, 718)
        }),
        ("2.1", {
            "triu": (26,), "logical_not": (344, 380), "add": (704, 705, 707, 708, 842, 843, 844,
            846, 847, 848)
        }),
        ("2.2", {
            "triu": (27,), "logical_not": (348, 384), "add": (711, 712, 714, 715, 851, 852, 853,
            855, 856, 857)
        }),
        ("2.3", {
            "triu": (31,), "logical_not": (372, 408), "add": (746, 747, 749, 750, 886, 887, 888,
            890, 891, 892)
        }),
        ("2.4", {
            "triu": (32,), "logical_not": (373, 409), "add": (746, 747, 749, 750, 886, 887, 888,
            890, 891, 892)
        }),
        ("2.5", {
            "triu": (41,), "logical_not": (455, 503), "add": (897, 900, 903, 906, 1074, 1077,
            1084, 1087, 1090, 1095)
        }),
        ("2.6", {
            "triu": (37,), "logical_not": (461, 509), "add": (913, 916, 919, 922, 1095, 1098,
            1105, 1108, 1111, 1116)
        }),
        ("2.7", {
            "triu": (37,), "logical_not": (458, 506), "add": (907, 910, 913, 916, 1086, 1089,
            1096, 1099, 1102, 1107)
        }),
        ("2.8 2.9", {
            "triu": (37,), "logical_not": (468, 516), "add": (928, 931, 934, 937, 1110, 1113,
            1120, 1123, 1126, 1131)
        }),
        ("2.10 2.11", {
            "triu": (38,), "logical_not": (483, 532), "add": (947, 950, 953, 956, 1132, 1135,
            1142, 1145, 1148, 1153)
        }),
        ("2.12 2.13", {
            "triu": (38,), "logical_not": (481, 530), "add": (943, 946, 949, 952, 1125, 1128,
            1135, 1138, 1141, 1146)
        }),
        ("2.14 2.15", {
            "triu": (38,), "logical_not": (485, 534), "add": (947, 950, 953, 956, 1129, 1132, 1139,
            1142, 1145, 1150)
        }),
    ),
}  # fmt: skip
