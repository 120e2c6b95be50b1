//! Paths that are of one machine only.

use anyhow::Result;
use regex::Regex;

use super::{Breach, Tree};

const CHECKED: [&str; 3] = [".md", ".rs", ".toml"];

/// Top-level folders that differ from machine to machine, and what may stand before a path in prose or code.
const PATH: &str = r#"(?:^|[\s"'`(=])(/(?:home|root|tmp|work|workspace|Users)(?:/[\w.-]+|(?:[\s"'`).,;]|$)))"#;

/// Documents and comments that name one.
pub fn check(tree: &Tree) -> Result<Vec<Breach>> {
    let path = Regex::new(PATH)?;
    let mut breaches = Vec::new();
    for (name, text) in tree.texts().filter(|(name, _)| CHECKED.iter().any(|ending| name.ends_with(ending))) {
        for (line, text) in (1..).zip(text.lines()) {
            let prose =
                if name.ends_with(".rs") { text.split_once("//").map_or("", |(_, comment)| comment) } else { text };
            for found in path.captures_iter(prose) {
                breaches.push(Breach::new(name, line, format!("a path of one machine: {}", found[1].trim())));
            }
        }
    }
    Ok(breaches)
}
