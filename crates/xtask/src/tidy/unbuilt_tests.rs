//! Every file of integration tests is built: cargo looks for none by itself where one program has them all as modules.

use super::{Breach, Tree};

/// Files of tests that are no module of their crate's tests/integration.rs, and no program of its Cargo.toml.
pub fn check(tree: &Tree) -> impl Iterator<Item = Breach> {
    tree.with_ending(".rs").filter(|(name, _)| is_unbuilt(tree, name).unwrap_or(false)).map(|(name, _)| {
        Breach::new(name, 1, "the tests in it are never built: name it in tests/integration.rs of its crate")
    })
}

/// Nothing where cargo finds the file by itself.
fn is_unbuilt(tree: &Tree, name: &str) -> Option<bool> {
    let (package, file) = name.split_once("/tests/")?;
    let stem = file.strip_suffix(".rs")?;
    let manifest = tree.text(&format!("{package}/Cargo.toml"))?;
    if stem.contains('/') || !manifest.contains("autotests = false\n") {
        return None;
    }
    let is_program = manifest.contains(&format!("[[test]]\nname = \"{stem}\"\n"));
    let modules = tree.text(&format!("{package}/tests/integration.rs")).unwrap_or_default();
    Some(!is_program && !modules.lines().any(|line| line == format!("mod {stem};")))
}
