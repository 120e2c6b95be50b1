//! Every crate keeps the workspace's lints.

use super::{Breach, Tree};

/// Crates that have lints of their own, or none.
pub fn check(tree: &Tree) -> impl Iterator<Item = Breach> {
    tree.with_ending("/Cargo.toml")
        .filter(|(name, text)| name.starts_with("crates/") && !text.contains("[lints]\nworkspace = true\n"))
        .map(|(name, _)| Breach::new(name, 1, "does without the workspace's lints: add [lints] workspace = true"))
}
