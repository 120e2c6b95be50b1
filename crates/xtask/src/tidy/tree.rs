//! The files of the repository.

use std::cell::OnceCell;
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::str::FromStr;

use anyhow::{Context, Result, bail};
use proc_macro2::{TokenStream, TokenTree};

/// All text files that are committed or could be, by name.
pub struct Tree {
    texts: BTreeMap<String, String>,
    /// Of those that are no text, too.
    names: Vec<String>,
    /// Files of Rust, once somebody has asked for them.
    rust: OnceCell<BTreeMap<String, syn::File>>,
}

impl Tree {
    /// Asks git which there are, and reads them.
    pub fn read(root: &Path) -> Result<Tree> {
        let mut git = Command::new("git");
        git.args(["-c", "safe.directory=*", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]);
        let listed = git.current_dir(root).output().context("running git")?;
        if !listed.status.success() {
            bail!("git ls-files in {}: {}", root.display(), String::from_utf8_lossy(&listed.stderr).trim());
        }
        let names = String::from_utf8(listed.stdout).context("the name of a file is not UTF-8")?;
        let is_there = |name: &&str| root.join(name).is_file();
        let names: Vec<String> =
            names.split('\0').filter(|name| !name.is_empty()).filter(is_there).map(str::to_owned).collect();
        let mut texts = BTreeMap::new();
        for name in &names {
            let bytes = fs::read(root.join(name)).with_context(|| format!("reading {name}"))?;
            if !bytes.contains(&0) {
                texts.insert(name.clone(), String::from_utf8_lossy(&bytes).into_owned());
            }
        }
        Ok(Tree { texts, names, rust: OnceCell::new() })
    }

    /// One that is nowhere.
    #[cfg(test)]
    pub fn of(texts: &[(&str, &str)]) -> Tree {
        let texts: BTreeMap<_, _> = texts.iter().map(|&(name, text)| (name.to_owned(), text.to_owned())).collect();
        Tree { names: texts.keys().cloned().collect(), texts, rust: OnceCell::new() }
    }

    /// Of texts.
    pub fn len(&self) -> usize {
        self.texts.len()
    }

    /// The texts whose names end so.
    pub fn with_ending(&self, ending: &str) -> impl Iterator<Item = (&str, &str)> {
        self.texts().filter(move |(name, _)| name.ends_with(ending))
    }

    /// Name and text of each.
    pub fn texts(&self) -> impl Iterator<Item = (&str, &str)> {
        self.texts.iter().map(|(name, text)| (name.as_str(), text.as_str()))
    }

    /// One of them.
    pub fn text(&self, name: &str) -> Option<&str> {
        self.texts.get(name).map(String::as_str)
    }

    /// The files of Rust, parsed.
    pub fn rust(&self) -> Result<&BTreeMap<String, syn::File>> {
        if let Some(files) = self.rust.get() {
            return Ok(files);
        }
        let parse = |(name, text): (&str, &str)| {
            let file = syn::parse_file(text).with_context(|| name.to_owned())?;
            Ok((name.to_owned(), file))
        };
        let files = self.with_ending(".rs").map(parse).collect::<Result<_>>()?;
        Ok(self.rust.get_or_init(|| files))
    }

    /// Of all files.
    pub fn names(&self) -> &[String] {
        &self.names
    }

    /// Whether there is a file or folder of this name.
    pub fn has(&self, name: &str) -> bool {
        let name = name.trim_end_matches('/');
        self.names
            .iter()
            .any(|file| file.strip_prefix(name).is_some_and(|rest| rest.is_empty() || rest.starts_with('/')))
    }
}

/// The tokens of a Rust file: without comments.
pub fn tokens(name: &str, text: &str) -> Result<TokenStream> {
    TokenStream::from_str(text).map_err(|error| anyhow::anyhow!("{name}: {error}"))
}

/// Calls a function with each token, those within brackets among them.
pub fn each_token(stream: TokenStream, call: &mut impl FnMut(&TokenTree)) {
    for token in stream {
        call(&token);
        if let TokenTree::Group(group) = token {
            each_token(group.stream(), call);
        }
    }
}
