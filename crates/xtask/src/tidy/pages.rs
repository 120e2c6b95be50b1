//! Pages of documentation: that their links lead somewhere, that they are found, and that what they name is there.

use std::collections::HashSet;
use std::path::{Component, Path};

use anyhow::Result;
use pulldown_cmark::{Event, Options, Parser, Tag};
use regex::Regex;

use super::{Breach, Tree};

/// From where every page is to be found.
const ROOTS: [&str; 2] = ["README.md", "ARCHITECTURE.md"];

/// Tells of what was, too.
const HISTORY: &str = "CHANGELOG.md";

/// A file of ours as prose names it: in full, or by the end of its path.
const NAMED_FILE: &str =
    r"^[\w.-]+(?:/[\w.-]+)*\.(?:rs|c|h|md|toml|sh|py|yml)$|^(?:crates|docs|fuzz|kernel|scripts|tests)/[\w./-]+$";

/// A page's links, and what it names as code, with their lines.
struct Page<'a> {
    links: Vec<(usize, String)>,
    codes: Vec<(usize, &'a str)>,
}

impl<'a> Page<'a> {
    fn parse(name: &str, text: &'a str) -> Page<'a> {
        let mut page = Page { links: Vec::new(), codes: Vec::new() };
        let folder = Path::new(name).parent().unwrap_or(Path::new(""));
        for (event, range) in Parser::new_ext(text, Options::ENABLE_TABLES).into_offset_iter() {
            let line = 1 + text[..range.start].matches('\n').count();
            match event {
                Event::Start(Tag::Link { dest_url, .. } | Tag::Image { dest_url, .. }) => {
                    let file = dest_url.split('#').next().unwrap_or_default();
                    if !file.is_empty() && !file.contains("://") && !file.starts_with("mailto:") {
                        page.links.push((line, resolved(&folder.join(file))));
                    }
                }
                Event::Code(_) => page.codes.push((line, text[range].trim_matches('`'))),
                _ => {}
            }
        }
        page
    }
}

/// A path without `.` and `..`.
fn resolved(path: &Path) -> String {
    let mut parts = Vec::new();
    for component in path.components() {
        match component {
            Component::Normal(part) => parts.push(part.to_string_lossy()),
            Component::ParentDir => drop(parts.pop()),
            _ => {}
        }
    }
    parts.join("/")
}

/// Broken links, pages that nothing leads to, and files that are gone.
pub fn check(tree: &Tree) -> Result<Vec<Breach>> {
    let named_file = Regex::new(NAMED_FILE)?;
    let (mut breaches, mut found) = (Vec::new(), HashSet::new());
    for (name, text) in tree.with_ending(".md") {
        let page = Page::parse(name, text);
        for (line, target) in page.links {
            if !target.is_empty() && !tree.has(&target) {
                breaches.push(Breach::new(name, line, format!("broken link to {target}")));
            }
            if ROOTS.contains(&name) {
                found.insert(target);
            }
        }
        let files = page.codes.into_iter().filter(|(_, code)| name != HISTORY && named_file.is_match(code));
        for (line, file) in files.filter(|(_, file)| !is_there(tree, file)) {
            breaches.push(Breach::new(name, line, format!("names {file}, which is not there")));
        }
    }
    let lost = tree.with_ending(".md").filter(|(name, _)| name.starts_with("docs/") && !found.contains(*name));
    breaches.extend(lost.map(|(name, _)| Breach::new(name, 1, format!("linked from none of {}", ROOTS.join(", ")))));
    Ok(breaches)
}

fn is_there(tree: &Tree, file: &str) -> bool {
    tree.has(file) || tree.names().iter().any(|name| name.strip_suffix(file).is_some_and(|rest| rest.ends_with('/')))
}
