//! The book of `docs/`: what mdBook asks of a preprocessor, and whether the links of the built book lead somewhere.
//!
//! The pages are written to be read in the repository as well. So two things are done only for the book: the reference of the
//! command gets each command's help, and links to files that the book lacks become those files' names.

use std::collections::{HashMap, HashSet};
use std::fmt::Write as _;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use pulldown_cmark::{Event, Options, Parser, Tag};
use regex::Regex;
use serde_json::Value;

use crate::tidy::resolved;

/// Where the pages are.
const PAGES: &str = "docs";

/// Stands where the help of all commands goes.
const HELP_GOES_HERE: &str = "<!-- vmio --help -->";

/// Reads mdBook's context and book from standard input, and writes the book that it is to render to standard output.
pub fn preprocess(vmio: &Path) -> Result<()> {
    let (_context, mut book): (Value, Value) =
        serde_json::from_reader(io::stdin().lock()).context("mdBook writes its context and the book")?;
    let help = help_of_all(vmio)?;
    each_chapter(&mut book, &mut |source, text| {
        *text = with_links_of_the_book(source, text).replace(HELP_GOES_HERE, &help);
    });
    serde_json::to_writer(io::stdout().lock(), &book).context("writing the book to mdBook")
}

/// Calls a function with each chapter's path below `docs/` and its text. Versions of mdBook differ in what is around chapters.
fn each_chapter(value: &mut Value, call: &mut impl FnMut(&str, &mut String)) {
    match value {
        Value::Array(values) => values.iter_mut().for_each(|value| each_chapter(value, call)),
        Value::Object(fields) => {
            // The page's own path: README.md is index.md in the book.
            let path = ["source_path", "path"].iter().find_map(|name| fields.get(*name)?.as_str());
            if let Some(source) = path.map(str::to_owned)
                && let Some(Value::String(text)) = fields.get_mut("content")
            {
                call(&source, text);
            }
            fields.values_mut().for_each(|value| each_chapter(value, call));
        }
        _ => {}
    }
}

/// A page with its links as the book can follow them.
fn with_links_of_the_book(source: &str, text: &str) -> String {
    let page = Path::new(PAGES).join(source);
    let folder = page.parent().unwrap_or(Path::new(PAGES));
    let (mut changed, mut done) = (String::with_capacity(text.len()), 0);
    for (event, range) in Parser::new_ext(text, Options::ENABLE_TABLES).into_offset_iter() {
        let Event::Start(Tag::Link { dest_url, .. }) = event else { continue };
        let inner = text[range.clone()].strip_prefix('[').and_then(|link| link.rsplit_once("]("));
        let Some((label, _)) = inner else { continue };
        // Writing to a string cannot fail.
        let _ = match Target::of(folder, &dest_url) {
            Target::Kept => continue,
            Target::Page(url) => write!(changed, "{}[{label}]({url})", &text[done..range.start]),
            Target::Name(file) if label.trim_matches('`') == file => {
                write!(changed, "{}{label}", &text[done..range.start])
            }
            Target::Name(file) => write!(changed, "{}{label} (`{file}`)", &text[done..range.start]),
        };
        done = range.end;
    }
    changed += &text[done..];
    changed
}

/// What becomes of a link's target.
enum Target {
    /// It is in the book as it is named.
    Kept,
    /// It is a page that has another name in the book.
    Page(String),
    /// The book lacks it: it is outside `docs/`, or a folder. This is its path from the repository's root.
    Name(String),
}

impl Target {
    fn of(folder: &Path, url: &str) -> Target {
        let file = url.split('#').next().unwrap_or_default();
        if file.is_empty() || file.contains("://") || file.starts_with("mailto:") {
            return Target::Kept;
        }
        let resolved = resolved(&folder.join(file));
        let path = Path::new(&resolved);
        if !path.starts_with(PAGES) || path.extension().is_none() {
            Target::Name(resolved)
        } else if path.ends_with("README.md") {
            // mdBook makes it the index of its folder.
            Target::Page(url.replacen("README.md", "index.md", 1))
        } else {
            Target::Kept
        }
    }
}

/// A section for each command, and for each of its commands, with what `--help` prints.
fn help_of_all(vmio: &Path) -> Result<String> {
    let mut sections = String::new();
    let top = help(vmio, &[])?;
    for name in names_of_commands(&top) {
        let path = [name];
        let text = help(vmio, &path)?;
        let parts = names_of_commands(&text);
        add_section(&mut sections, "##", &path, &text);
        for part in parts {
            let path = [name, part];
            add_section(&mut sections, "###", &path, &help(vmio, &path)?);
        }
    }
    ensure!(!sections.is_empty(), "{} --help names no commands", vmio.display());
    Ok(sections)
}

fn add_section(sections: &mut String, level: &str, path: &[&str], help: &str) {
    let _ = write!(sections, "{level} vmio {}\n\n```text\n{}\n```\n\n", path.join(" "), help.trim_end());
}

fn help(vmio: &Path, path: &[&str]) -> Result<String> {
    let mut command = Command::new(vmio);
    command.args(path).arg("--help");
    let output = command.output().with_context(|| format!("{} --help: build vmio-cli first", vmio.display()))?;
    if !output.status.success() {
        bail!("vmio {} --help failed: {}", path.join(" "), String::from_utf8_lossy(&output.stderr).trim());
    }
    String::from_utf8(output.stdout).context("help is not UTF-8")
}

/// The commands that a help text lists, but for `help` itself.
fn names_of_commands(help: &str) -> Vec<&str> {
    let listed = help.lines().skip_while(|line| *line != "Commands:").skip(1).take_while(|line| !line.is_empty());
    listed
        .filter(|line| line.starts_with("  ") && !line.starts_with("   "))
        .filter_map(|line| line.split_whitespace().next())
        .filter(|name| *name != "help")
        .collect()
}

/// Fails, and names them, if links of the built book lead nowhere.
pub fn check_links(built: &Path) -> Result<()> {
    let (links, places) = (Regex::new(r#"<a [^>]*href="([^"]*)""#)?, Regex::new(r#" id="([^"]*)""#)?);
    let mut pages = HashMap::new();
    for file in html_files(built)? {
        let text = fs::read_to_string(&file).with_context(|| file.display().to_string())?;
        let name = resolved(file.strip_prefix(built)?);
        let ids: HashSet<String> = places.captures_iter(&text).map(|found| found[1].to_owned()).collect();
        pages.insert(name, (text, ids));
    }
    ensure!(!pages.is_empty(), "there is no page in {}", built.display());
    let mut broken: Vec<String> = Vec::new();
    for (name, (text, _)) in &pages {
        let folder = Path::new(name).parent().unwrap_or(Path::new(""));
        for found in links.captures_iter(text) {
            let (file, place) = found[1].split_once('#').unwrap_or((&found[1], ""));
            if file.contains("://") || file.starts_with("mailto:") {
                continue;
            }
            let target = if file.is_empty() { name.clone() } else { resolved(&folder.join(file)) };
            let leads = match pages.get(&target) {
                Some((_, ids)) => place.is_empty() || ids.contains(place),
                None => place.is_empty() && built.join(&target).is_file(),
            };
            if !leads {
                broken.push(format!("{name}: broken link to {}", &found[1]));
            }
        }
    }
    broken.sort();
    broken.dedup();
    ensure!(broken.is_empty(), "{}", broken.join("\n"));
    println!("book: {} pages, no broken links", pages.len());
    Ok(())
}

/// The pages of the built book. The one to print has all others in it, and their links with it.
fn html_files(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder).with_context(|| folder.display().to_string())? {
        let path = entry?.path();
        let is_page = path.extension().is_some_and(|ending| ending == "html");
        let is_made_by_mdbook = ["print.html", "toc.html", "404.html"].iter().any(|name| path.ends_with(name));
        if path.is_dir() {
            files.append(&mut html_files(&path)?);
        } else if is_page && !is_made_by_mdbook {
            files.push(path);
        }
    }
    Ok(files)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn links_lead_to_what_the_book_has() {
        let page = "[a](../b.md#c) [`crates/x`](../../crates/x), [y](../../tests/y.md) [z](https://z.org/a.md)\n\n| [q](../../r) |\n";
        let book = "[a](../b.md#c) `crates/x`, y (`tests/y.md`) [z](https://z.org/a.md)\n\n| q (`r`) |\n";
        assert_eq!(with_links_of_the_book("guides/a.md", page), book);
        let page = "[all](../benchmarks/README.md#how) [figures](../benchmarks/figures) [one](../benchmarks/a.svg)";
        let book = "[all](../benchmarks/index.md#how) figures (`docs/benchmarks/figures`) [one](../benchmarks/a.svg)";
        assert_eq!(with_links_of_the_book("guides/a.md", page), book);
    }

    #[test]
    fn each_page_of_a_book_is_found() {
        let mut book = serde_json::json!({ "items": [
            { "PartTitle": "Guides" },
            { "Chapter": { "content": "[up](../R.md)", "path": "index.md", "source_path": "README.md",
                "sub_items": [{ "Chapter": { "content": "", "path": "a/b.md", "source_path": "a/b.md", "sub_items": [] } }] } },
        ] });
        let mut found = Vec::new();
        each_chapter(&mut book, &mut |source, text| found.push((source.to_owned(), text.clone())));
        assert_eq!(found, [("README.md".to_owned(), "[up](../R.md)".to_owned()), ("a/b.md".to_owned(), String::new())]);
    }

    #[test]
    fn commands_are_those_that_the_help_lists() {
        let help = "What it is\n\nCommands:\n  put   Set\n          more\n  help  Print\n\nOptions:\n  -h\n";
        assert_eq!(names_of_commands(help), ["put"]);
    }

    #[test]
    fn a_broken_link_of_the_built_book_is_named() {
        let built = tempfile::tempdir().unwrap();
        fs::write(
            built.path().join("a.html"),
            r##"<h1 id="x"></h1><a class="b" href="a.html#x"> <a href="#x"> <a href="https://c.d">"##,
        )
        .unwrap();
        check_links(built.path()).unwrap();
        fs::write(built.path().join("b.html"), r#"<a href="a.html#y"> <a href="gone.html">"#).unwrap();
        let told = check_links(built.path()).unwrap_err().to_string();
        assert_eq!(told, "b.html: broken link to a.html#y\nb.html: broken link to gone.html");
    }
}
