//! How long files and functions are.

use std::cmp::Reverse;

use anyhow::Result;
use syn::spanned::Spanned;
use syn::visit::{self, Visit};
use syn::{Block, ImplItemFn, ItemFn, Signature, TraitItemFn};

use super::{Breach, Tree};

const LINES_MAX: usize = 600;

/// Not written by hand line by line: length says nothing about them.
const EXEMPT: [&str; 6] = [
    "Cargo.lock",
    "fuzz/Cargo.lock",
    "LICENSE",
    "CHANGELOG.md",
    "docs/benchmarks/map.md",
    "crates/vmio-c/include/vmio.h",
];

/// Files that are too long.
pub fn check(tree: &Tree) -> impl Iterator<Item = Breach> {
    files(tree)
        .filter(|&(lines, _)| lines > LINES_MAX)
        .map(|(lines, name)| Breach::new(name, lines, format!("{lines} lines; {LINES_MAX} are allowed: split it")))
}

fn files(tree: &Tree) -> impl Iterator<Item = (usize, &str)> {
    tree.texts().filter(|(name, _)| !EXEMPT.contains(name)).map(|(name, text)| (text.lines().count(), name))
}

/// Prints the longest files and functions, `count` of each.
pub fn list_longest(tree: &Tree, count: usize) -> Result<()> {
    let mut files: Vec<_> = files(tree).map(|(lines, name)| (lines, name.to_owned())).collect();
    let mut functions = Vec::new();
    for (name, file) in tree.rust()? {
        let mut found = Functions { file: name, found: Vec::new() };
        found.visit_file(file);
        functions.append(&mut found.found);
    }
    for (what, list) in [("files", &mut files), ("functions", &mut functions)] {
        list.sort_unstable_by_key(|(lines, _)| Reverse(*lines));
        if count > 0 {
            println!("the longest {what}:");
        }
        list.iter().take(count).for_each(|(lines, name)| println!("{lines:>6} lines  {name}"));
    }
    Ok(())
}

/// The functions of a file, with their lengths in lines.
struct Functions<'a> {
    file: &'a str,
    found: Vec<(usize, String)>,
}

impl Functions<'_> {
    fn add(&mut self, signature: &Signature, body: &Block) {
        let (start, end) = (signature.span().start().line, body.span().end().line);
        self.found.push((end - start + 1, format!("{}:{start} {}", self.file, signature.ident)));
    }
}

impl<'ast> Visit<'ast> for Functions<'_> {
    fn visit_item_fn(&mut self, function: &'ast ItemFn) {
        self.add(&function.sig, &function.block);
        visit::visit_item_fn(self, function);
    }

    fn visit_impl_item_fn(&mut self, function: &'ast ImplItemFn) {
        self.add(&function.sig, &function.block);
        visit::visit_impl_item_fn(self, function);
    }

    fn visit_trait_item_fn(&mut self, function: &'ast TraitItemFn) {
        if let Some(body) = &function.default {
            self.add(&function.sig, body);
        }
        visit::visit_trait_item_fn(self, function);
    }
}
