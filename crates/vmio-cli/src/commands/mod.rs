//! The subcommands of `vmio`, one module each.

pub mod cat;
pub mod completions;
pub mod cp;
pub mod doctor;
pub mod journal;
pub mod kv;
pub mod man;
pub mod pmfs;
pub mod record;
pub mod recover;
pub mod report;
pub mod run;
mod source;
pub mod stat;
pub mod sum;
pub mod top;
pub mod trace;
mod watched_command;
