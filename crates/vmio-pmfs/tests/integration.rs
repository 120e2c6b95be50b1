//! The tests of the file system, one program.

mod aligned;
mod calls;
mod crashes;
mod damage;
mod model;
mod recovery;
mod support;
mod use_all;
