//! Project lints: rules that no compiler checks. The lints of clippy and rustc are in the workspace's `Cargo.toml`; `lints` checks that every
//! crate inherits them.

mod layers;
mod lengths;
mod lints;
mod machine_paths;
mod pages;
mod prose;
mod silent_tests;
mod tree;
mod unbuilt_tests;
mod unsafe_places;

use std::path::Path;

use anyhow::Result;

pub use pages::resolved;
use prose::Prose;
pub use tree::Tree;

/// What breaks a rule, and where.
struct Breach {
    file: String,
    line: usize,
    what: String,
}

impl Breach {
    fn new(file: &str, line: usize, what: impl Into<String>) -> Self {
        Breach { file: file.to_owned(), line, what: what.into() }
    }
}

/// Prints each breach as `file:line: what`, then the longest files and functions and the worst sentences; says whether there is no breach.
pub fn tidy(root: &Path, longest: usize, sentences: usize) -> Result<bool> {
    let tree = Tree::read(root)?;
    let prose = Prose::read(&tree)?;
    let mut breaches = Vec::new();
    breaches.extend(lengths::check(&tree));
    breaches.extend(unsafe_places::check(&tree)?);
    breaches.extend(machine_paths::check(&tree)?);
    breaches.extend(pages::check(&tree)?);
    breaches.extend(lints::check(&tree));
    breaches.extend(layers::check_modules(&tree)?);
    breaches.extend(layers::check_packages(&tree, root)?);
    breaches.extend(prose.check());
    breaches.extend(silent_tests::check(&tree)?);
    breaches.extend(unbuilt_tests::check(&tree));
    for Breach { file, line, what } in &breaches {
        println!("{file}:{line}: {what}");
    }
    lengths::list_longest(&tree, longest)?;
    prose.list(sentences);
    println!("tidy: {} files, {} breaches", tree.len(), breaches.len());
    Ok(breaches.is_empty())
}

/// Prints the sentences that are not as they should be, of files whose names begin as one of these paths.
pub fn list_prose(root: &Path, starts: &[String]) -> Result<()> {
    let tree = Tree::read(root)?;
    let prose = Prose::read(&tree)?;
    starts.iter().for_each(|start| prose.list_in(start.trim_start_matches("./")));
    Ok(())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    /// The breaches that a rule finds in files, as `file:line`.
    fn places<I: IntoIterator<Item = Breach>>(breaches: I) -> Vec<String> {
        breaches.into_iter().map(|breach| format!("{}:{}", breach.file, breach.line)).collect()
    }

    #[test]
    fn files_over_600_lines_are_too_long() {
        let (most, more) = ("a\n".repeat(600), "a\n".repeat(601));
        let tree = Tree::of(&[("a.rs", &most), ("b.rs", &more), ("CHANGELOG.md", &more)]);
        assert_eq!(places(lengths::check(&tree)), ["b.rs:601"]);
    }

    #[test]
    fn unsafe_stands_where_it_may_and_nowhere_else() {
        let code = "// unsafe\nconst A: &str = \"unsafe\";\nmacro_rules! m { () => { unsafe {} } }\n";
        let tree = Tree::of(&[("crates/vmio/src/sys/a.rs", code), ("crates/vmio/src/a.rs", code)]);
        let found = places(unsafe_places::check(&tree).unwrap());
        assert_eq!(found[0], "crates/vmio/src/a.rs:3");
        // A listed file that does not exist is a breach, too.
        assert!(found.len() > 1 && found[1..].iter().all(|place| place.contains("unsafe_places.rs")));
    }

    #[test]
    fn a_file_of_tests_that_nobody_builds_is_found() {
        let manifest = "autotests = false\n\n[[test]]\nname = \"integration\"\n\n[[test]]\nname = \"own\"\n";
        let tree = Tree::of(&[
            ("crates/a/Cargo.toml", manifest),
            ("crates/a/tests/integration.rs", "mod named;\nmod support;\n"),
            ("crates/a/tests/named.rs", ""),
            ("crates/a/tests/forgotten.rs", ""),
            ("crates/a/tests/own.rs", ""),
            ("crates/a/tests/support/mod.rs", ""),
            ("crates/b/Cargo.toml", "[package]\n"),
            ("crates/b/tests/found.rs", ""),
        ]);
        assert_eq!(places(unbuilt_tests::check(&tree)), ["crates/a/tests/forgotten.rs:1"]);
    }

    #[test]
    fn paths_of_one_machine_are_found_in_comments_and_pages() {
        let page = format!("see `/{}/somebody/notes`\n", "home");
        let literal = format!("const A: &str = \"/{}/a\";", "tmp");
        let code = format!("{literal} // as /{}/b\n", "tmp");
        let tree = Tree::of(&[("a.md", &page), ("b.rs", &code), ("c.rs", &literal), ("d.sh", &page)]);
        assert_eq!(places(machine_paths::check(&tree).unwrap()), ["a.md:1", "b.rs:1"]);
    }

    #[test]
    fn pages_lead_to_each_other_and_name_what_is_there() {
        let tree = Tree::of(&[
            (
                "README.md",
                "[one](docs/one.md#a-part-of-it)\n[gone](docs/gone.md) `crates/a/src/lib.rs`\n\n`src/lib.rs` `gone.rs`\n",
            ),
            ("ARCHITECTURE.md", "[a](crates/a), <https://example.org/a.md>\n"),
            ("docs/SUMMARY.md", "- [One](one.md)\n"),
            (
                "docs/one.md",
                "# A `part` *of* [it](one.svg)\n[up](../README.md) ![drawn](one.svg) [here](#a-part-of-it)\n\n```\n`gone.rs`\n# no-part\n```\n",
            ),
            ("docs/two.md", "## Twice\n## Twice\n[one](one.md#no-part)\n[two](two.md#twice-1) [no](#thrice)\n"),
            ("crates/a/src/lib.rs", ""),
        ]);
        assert_eq!(
            places(pages::check(&tree).unwrap()),
            [
                "README.md:2",
                "README.md:4",
                "docs/one.md:1",
                "docs/one.md:2",
                "docs/two.md:3",
                "docs/two.md:4",
                "docs/two.md:1"
            ]
        );
    }

    #[test]
    fn every_crate_has_the_lints_of_all() {
        let kept = "[package]\n\n[lints]\nworkspace = true\n";
        let tree =
            Tree::of(&[("crates/a/Cargo.toml", kept), ("crates/b/Cargo.toml", "[package]\n"), ("fuzz/Cargo.toml", "")]);
        assert_eq!(places(lints::check(&tree)), ["crates/b/Cargo.toml:1"]);
    }

    #[test]
    fn modules_know_only_those_above_them() {
        let map = "### [`crates/vmio`](crates/vmio): it\n- [`a`](crates/vmio/src/a): see [d](crates/vmio/src/d.rs)\n- [`b`](crates/vmio/src/b.rs): b\n- [`c`](crates/vmio/src/c): c\n";
        let tree = Tree::of(&[
            ("ARCHITECTURE.md", map),
            ("crates/vmio/src/a/mod.rs", "#[cfg(test)]\nmod tests;\nuse std::io;\nfn f() { crate::b::g() }\n"),
            ("crates/vmio/src/a/tests.rs", "use crate::c::C;\n"),
            (
                "crates/vmio/src/b.rs",
                "use crate::a::A;\nuse crate::{\n    a::B,\n    c::{C, D},\n};\n#[cfg(test)]\nmod tests {\n    use crate::c::C;\n}\n",
            ),
            ("crates/vmio/src/c/d.rs", "use crate::b::B;\n"),
            ("crates/vmio/src/d.rs", ""),
        ]);
        let found = places(layers::check_modules(&tree).unwrap());
        let of_files: Vec<_> = found.iter().filter(|place| place.starts_with("crates/vmio/")).collect();
        assert_eq!(of_files, ["crates/vmio/src/a/mod.rs:4", "crates/vmio/src/b.rs:4", "crates/vmio/src/d.rs:1"]);
        // There are no exceptions, so none is reported as not needed.
        assert_eq!(found.len(), of_files.len());
    }
}
