//! System calls that get pointers to managed memory, which the host does not have at those addresses.
//!
//! `memory` says what memory a call uses, by the `table`. `held` makes such a call: the program keeps the pages resident and exposed meanwhile.

pub(crate) mod held;
pub(crate) mod memory;
mod table;

pub use held::Holder;
