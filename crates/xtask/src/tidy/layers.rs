//! The crates of ARCHITECTURE.md, and the modules of the library, know only those that stand above them there.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use serde_json::Value;
use syn::visit::{self, Visit};
use syn::{Attribute, ItemMod, ItemUse, Meta, UseTree};

use super::{Breach, Tree};

const MAP: &str = "ARCHITECTURE.md";
const CRATES: &str = "crates/";
/// The crate whose modules are parts by themselves.
const LIBRARY: &str = "crates/vmio";
const MODULES: &str = "crates/vmio/src/";

/// Modules of the library that know another below them all the same, and for what. What is on this list no longer is a breach, too.
const EXCEPTIONS: &[(&str, &str, &str)] = &[];

/// How the line of a crate begins there, and that of modules of the library.
const PARTS: [&str; 2] = ["### [", "- ["];

/// The parts: in which line of the map each stands.
struct Map {
    lines: HashMap<String, usize>,
}

impl Map {
    fn read(tree: &Tree) -> Result<Map> {
        let text = tree.text(MAP).with_context(|| format!("there is no {MAP}"))?;
        let mut lines = HashMap::new();
        for (line, text) in (1..).zip(text.lines()).filter(|(_, text)| PARTS.iter().any(|part| text.starts_with(part)))
        {
            // Links before the colon are the parts; what is said of them behind it may have links, too.
            let links = text.split("): ").next().unwrap_or_default().split("](").skip(1);
            let parts = links.filter_map(|link| link.split(')').next()).filter(|part| part.starts_with(CRATES));
            for part in parts {
                if let Some(other) = lines.insert(part.to_owned(), line) {
                    bail!("{MAP}: {part} stands in lines {other} and {line}: leave one");
                }
            }
        }
        Ok(Map { lines })
    }

    /// A module of the library, by its name: a file or a folder.
    fn module(&self, name: &str) -> Option<usize> {
        let file = format!("{MODULES}{name}.rs");
        self.lines.get(file.trim_end_matches(".rs")).or_else(|| self.lines.get(&file)).copied()
    }

    /// A crate, by its folder: the library ends with its last module.
    fn package(&self, folder: &str) -> Option<usize> {
        if folder == LIBRARY {
            return self.lines.iter().filter(|(part, _)| part.starts_with(MODULES)).map(|(_, line)| *line).max();
        }
        self.lines.get(folder).copied()
    }
}

/// Modules of the library that know one below them.
pub fn check_modules(tree: &Tree) -> Result<Vec<Breach>> {
    let map = Map::read(tree)?;
    let mut breaches = Vec::new();
    let mut files = Vec::new();
    for (name, text) in tree.with_ending(".rs").filter(|(name, _)| name.starts_with(MODULES)) {
        let mut uses = Uses { folder: folder_of_children(name), ..Uses::default() };
        uses.visit_file(&syn::parse_file(text).with_context(|| name.to_owned())?);
        files.push((name, uses));
    }
    let mut needed = vec![false; EXCEPTIONS.len()];
    let of_tests: Vec<PathBuf> = files.iter().flat_map(|(_, uses)| uses.test_modules.clone()).collect();
    for (name, uses) in files {
        let is_test = of_tests
            .iter()
            .any(|module| Path::new(name).starts_with(module) || Path::new(name) == module.with_extension("rs"));
        let module = name[MODULES.len()..].split(['/', '.']).next().unwrap_or_default();
        if is_test || module == "lib" {
            continue;
        }
        let Some(own) = map.module(module) else {
            breaches.push(Breach::new(name, 1, format!("the module {module} is not in {MAP}")));
            continue;
        };
        for (line, known) in uses.modules {
            if let Some(at) = map.module(&known).filter(|&at| at > own) {
                if let Some(index) =
                    EXCEPTIONS.iter().position(|&(who, whom, _)| (who, whom) == (module, known.as_str()))
                {
                    needed[index] = true;
                    continue;
                }
                let what = format!("{module} knows {known}, which stands below it ({MAP}, lines {own} and {at})");
                breaches.push(Breach::new(name, line, what));
            }
        }
    }
    for ((module, known, _), _) in EXCEPTIONS.iter().zip(needed).filter(|(_, needed)| !needed) {
        breaches.push(Breach::new(file!(), 1, format!("{module} knows {known} no longer: take the exception away")));
    }
    Ok(breaches)
}

/// Where the files of a file's modules are.
fn folder_of_children(file: &str) -> PathBuf {
    let path = Path::new(file);
    match path.file_name().and_then(|name| name.to_str()) {
        Some("lib.rs" | "mod.rs") => path.parent().unwrap_or(path).to_owned(),
        _ => path.with_extension(""),
    }
}

/// What a file names of its own crate, code of tests left out.
#[derive(Default)]
struct Uses {
    folder: PathBuf,
    modules: Vec<(usize, String)>,
    /// Modules in files of their own which only tests have.
    test_modules: Vec<PathBuf>,
}

impl Uses {
    fn add_first_of(&mut self, tree: &UseTree) {
        let name = match tree {
            UseTree::Path(path) => &path.ident,
            UseTree::Name(name) => &name.ident,
            UseTree::Rename(rename) => &rename.ident,
            UseTree::Glob(_) => return,
            UseTree::Group(group) => return group.items.iter().for_each(|item| self.add_first_of(item)),
        };
        self.modules.push((name.span().start().line, name.to_string()));
    }
}

/// Whether only tests, or loom's models, have it.
fn is_for_tests(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| match &attribute.meta {
        Meta::List(list) if list.path.is_ident("cfg") => {
            let condition = list.tokens.to_string();
            ["test", "loom"].iter().any(|word| condition == *word || condition.starts_with(&format!("all ({word}")))
        }
        _ => false,
    })
}

impl<'ast> Visit<'ast> for Uses {
    fn visit_item_mod(&mut self, module: &'ast ItemMod) {
        if !is_for_tests(&module.attrs) {
            visit::visit_item_mod(self, module);
        } else if module.content.is_none() {
            self.test_modules.push(self.folder.join(module.ident.to_string()));
        }
    }

    fn visit_item_use(&mut self, item: &'ast ItemUse) {
        if let UseTree::Path(path) = &item.tree
            && path.ident == "crate"
            && !is_for_tests(&item.attrs)
        {
            self.add_first_of(&path.tree);
        }
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        if path.segments.first().is_some_and(|first| first.ident == "crate")
            && let Some(module) = path.segments.get(1)
        {
            self.modules.push((module.ident.span().start().line, module.ident.to_string()));
        }
        visit::visit_path(self, path);
    }
}

/// Crates that depend on one below them, for more than tests and examples.
pub fn check_packages(tree: &Tree, root: &Path) -> Result<Vec<Breach>> {
    let map = Map::read(tree)?;
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.args(["metadata", "--format-version", "1", "--no-deps", "--offline"]).current_dir(root);
    let said = cargo.output().context("running cargo metadata")?;
    if !said.status.success() {
        bail!("cargo metadata: {}", String::from_utf8_lossy(&said.stderr).trim());
    }
    let metadata: Value = serde_json::from_slice(&said.stdout).context("what cargo metadata says")?;
    let in_root = |path: &Value| {
        let path = Path::new(path.as_str()?).strip_prefix(root).ok()?;
        path.to_str().map(str::to_owned)
    };
    let mut breaches = Vec::new();
    for package in metadata["packages"].as_array().into_iter().flatten() {
        let manifest = in_root(&package["manifest_path"]).context("a package elsewhere")?;
        let folder = manifest.trim_end_matches("/Cargo.toml");
        let Some(own) = map.package(folder) else {
            breaches.push(Breach::new(&manifest, 1, format!("the crate is not in {MAP}")));
            continue;
        };
        let dependencies = package["dependencies"].as_array().into_iter().flatten();
        for known in dependencies.filter(|one| one["kind"].is_null()).filter_map(|one| in_root(&one["path"])) {
            if let Some(at) = map.package(&known).filter(|&at| at > own) {
                let what = format!("depends on {known}, which stands below it ({MAP}, lines {own} and {at})");
                breaches.push(Breach::new(&manifest, 1, what));
            }
        }
    }
    Ok(breaches)
}
