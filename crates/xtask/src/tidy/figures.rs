//! The benchmark page says what its figures hold.

use std::path::Path;

use anyhow::Result;

use super::{Breach, Tree};
use crate::bench;

/// What differs from what the figures give, where it begins to.
pub fn check(tree: &Tree, root: &Path) -> Result<Vec<Breach>> {
    let mut breaches = Vec::new();
    for (file, expected) in bench::rendered(root)? {
        let there = tree.text(&file).unwrap_or_default();
        if there != expected {
            let line =
                1 + there.lines().zip(expected.lines()).take_while(|(there, expected)| there == expected).count();
            breaches.push(Breach::new(&file, line, "is not what its figures give: cargo xtask bench --render"));
        }
    }
    Ok(breaches)
}
