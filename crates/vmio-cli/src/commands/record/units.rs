//! The units of the axes.

use vmio_report::charts::axis::Unit;

pub const COUNTS: [Unit; 3] = [("per second", 1.0), ("thousand per second", 1e3), ("million per second", 1e6)];
pub const RATES: [Unit; 4] = [("B/s", 1.0), ("kB/s", 1e3), ("MB/s", 1e6), ("GB/s", 1e9)];
pub const BYTES: [Unit; 4] = [("B", 1.0), ("KiB", 1024.0), ("MiB", 1048576.0), ("GiB", 1073741824.0)];
pub const NUMBERS: [Unit; 1] = [("mean number", 1.0)];
pub const RANDOMNESS: [Unit; 1] = [("0: in sequence, 0.33: anywhere", 1.0)];
pub const SECONDS: [Unit; 3] = [("s", 1.0), ("min", 60.0), ("h", 3600.0)];
