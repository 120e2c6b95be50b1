//! The output and input of vmio's commands: charts, tables, pages and JSON, files that appear when they are whole, sizes and times. This
//! crate knows nothing of the measured things.

#![deny(clippy::print_stdout)]

pub mod charts;
pub mod cleanup;
pub mod latency_curve;
pub mod machine;
pub mod new_file;
pub mod output;
pub mod page;
pub mod progress;
pub mod randomness;
pub mod report_file;
pub mod seconds;
pub mod size;
pub mod standard_output;
pub mod surroundings;
pub mod table;
