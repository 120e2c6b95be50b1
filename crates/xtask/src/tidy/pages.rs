//! Pages of documentation: that their links lead somewhere, that the book has them, and that what they name is there.

use std::collections::{HashMap, HashSet};
use std::path::{Component, Path};

use anyhow::Result;
use pulldown_cmark::{Event, Options, Parser, Tag, TagEnd};
use regex::Regex;

use super::{Breach, Tree};

/// Names each page of the book.
const SUMMARY: &str = "docs/SUMMARY.md";

/// Tells of what was, too.
const HISTORY: &str = "CHANGELOG.md";

/// A file of ours as prose names it: in full, or by the end of its path.
const NAMED_FILE: &str =
    r"^[\w.-]+(?:/[\w.-]+)*\.(?:rs|c|h|md|toml|sh|py|yml)$|^(?:crates|docs|fuzz|kernel|scripts|tests)/[\w./-]+$";

/// A link to a file of the repository, and to a heading there.
struct Link {
    line: usize,
    file: String,
    heading: Option<String>,
}

/// A page's links, and what it names as code, with their lines; and its headings, as links name them.
struct Page<'a> {
    links: Vec<Link>,
    codes: Vec<(usize, &'a str)>,
    headings: HashSet<String>,
}

impl<'a> Page<'a> {
    fn parse(name: &str, text: &'a str) -> Page<'a> {
        let mut page = Page { links: Vec::new(), codes: Vec::new(), headings: HashSet::new() };
        let folder = Path::new(name).parent().unwrap_or(Path::new(""));
        let (mut heading, mut counts) = (None::<String>, HashMap::<String, usize>::new());
        for (event, range) in Parser::new_ext(text, Options::ENABLE_TABLES).into_offset_iter() {
            let line = 1 + text[..range.start].matches('\n').count();
            if let (Some(heading), Event::Text(part) | Event::Code(part)) = (&mut heading, &event) {
                heading.push_str(part);
            }
            match event {
                Event::Start(Tag::Link { dest_url, .. } | Tag::Image { dest_url, .. }) => {
                    page.links.extend(Link::parse(line, name, folder, &dest_url));
                }
                Event::Code(_) => page.codes.push((line, text[range].trim_matches('`'))),
                Event::Start(Tag::Heading { .. }) => heading = Some(String::new()),
                Event::End(TagEnd::Heading(_)) => {
                    let slug = slug(&heading.take().unwrap_or_default());
                    let before = counts.entry(slug.clone()).or_default();
                    page.headings.insert(if *before == 0 { slug } else { format!("{slug}-{before}") });
                    *before += 1;
                }
                _ => {}
            }
        }
        page
    }
}

impl Link {
    /// None if it leads out of the repository.
    fn parse(line: usize, page: &str, folder: &Path, url: &str) -> Option<Link> {
        if url.contains("://") || url.starts_with("mailto:") {
            return None;
        }
        let (file, heading) =
            url.split_once('#').map_or((url, None), |(file, heading)| (file, Some(heading.to_owned())));
        let file = if file.is_empty() { page.to_owned() } else { resolved(&folder.join(file)) };
        Some(Link { line, file, heading })
    }
}

/// What links call a heading, both in mdBook and where the repository is read.
fn slug(heading: &str) -> String {
    let kept = |character: char| character.is_alphanumeric() || matches!(character, '_' | '-' | ' ');
    heading.trim().chars().filter(|&character| kept(character)).collect::<String>().to_lowercase().replace(' ', "-")
}

/// A path without `.` and `..`.
pub fn resolved(path: &Path) -> String {
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

/// Broken links, pages that the book lacks, and files that are gone.
pub fn check(tree: &Tree) -> Result<Vec<Breach>> {
    let named_file = Regex::new(NAMED_FILE)?;
    let pages: HashMap<&str, Page> =
        tree.with_ending(".md").map(|(name, text)| (name, Page::parse(name, text))).collect();
    let mut breaches = Vec::new();
    for (name, _) in tree.with_ending(".md") {
        let page = &pages[name];
        breaches.extend(page.links.iter().filter_map(|link| broken(tree, &pages, name, link)));
        let files = page.codes.iter().filter(|(_, code)| name != HISTORY && named_file.is_match(code));
        for (line, file) in files.filter(|(_, file)| !is_there(tree, file)) {
            breaches.push(Breach::new(name, *line, format!("names {file}, which is not there")));
        }
    }
    let listed: HashSet<&str> =
        pages.get(SUMMARY).map(|page| page.links.iter().map(|link| link.file.as_str()).collect()).unwrap_or_default();
    let lost = pages.keys().filter(|name| name.starts_with("docs/") && **name != SUMMARY && !listed.contains(*name));
    let mut lost: Vec<_> = lost.collect();
    lost.sort();
    breaches.extend(lost.into_iter().map(|name| Breach::new(name, 1, format!("{SUMMARY} does not list it"))));
    Ok(breaches)
}

fn broken(tree: &Tree, pages: &HashMap<&str, Page>, name: &str, link: &Link) -> Option<Breach> {
    if !link.file.is_empty() && !tree.has(&link.file) {
        return Some(Breach::new(name, link.line, format!("broken link to {}", link.file)));
    }
    let heading = link.heading.as_ref()?;
    let is_there = pages.get(link.file.as_str()).is_none_or(|page| page.headings.contains(heading));
    (!is_there).then(|| Breach::new(name, link.line, format!("{} has no heading #{heading}", link.file)))
}

fn is_there(tree: &Tree, file: &str) -> bool {
    tree.has(file) || tree.names().iter().any(|name| name.strip_suffix(file).is_some_and(|rest| rest.ends_with('/')))
}
