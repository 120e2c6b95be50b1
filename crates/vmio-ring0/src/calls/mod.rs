//! System calls that get pointers to managed memory, which the host does not have at those addresses.
//!
//! `memory` says what memory a call uses, by the `table`: which arguments are `pointers`, and what they lead to. `operations` has the calls that do
//! several things, `layouts` the structures with pointers of their own, `without_pointers` the rest of Linux's calls. `parts` says which calls may be
//! made in parts. `held` makes a call: the program keeps the pages resident and exposed meanwhile.

pub(crate) mod held;
mod layouts;
pub(crate) mod memory;
mod numbers;
mod operations;
#[allow(dead_code, reason = "`held` makes only reads and writes of one buffer in parts so far, by itself")]
mod parts;
mod pointers;
mod table;
mod without_pointers;

pub use held::Holder;
