//! The texts of Rust files that users read: doc comments, and what `--help` prints.

use std::collections::HashSet;

use proc_macro2::{Literal, TokenStream, TokenTree};
use syn::visit::{self, Visit};
use syn::{AttrStyle, Attribute, Expr, ExprLit, Field, File, ImplItemFn, Item, ItemConst, ItemMod, Lit, LitStr, Meta};
use syn::{Token, Variant, Visibility};

use super::Kind;

/// Derives whose types have their doc comments printed by `--help`.
const CLAP_DERIVES: [&str; 4] = ["Args", "Parser", "Subcommand", "ValueEnum"];

/// What clap takes texts by.
const CLAP_TEXTS: [&str; 8] =
    ["about", "after_help", "after_long_help", "before_help", "before_long_help", "help", "long_about", "long_help"];

/// A text in Markdown.
#[derive(Debug)]
pub struct RustText {
    pub kind: Kind,
    /// That it begins in.
    pub line: usize,
    pub text: String,
}

/// The texts of a file.
pub fn rust_texts(file: &File) -> Vec<RustText> {
    let mut texts = Texts::default();
    texts.visit_file(file);
    let mut constants = Constants { named: texts.constants, found: texts.found };
    constants.visit_file(file);
    constants.found
}

#[derive(Default)]
struct Texts {
    found: Vec<RustText>,
    /// Of the item that is looked at.
    kind: Option<Kind>,
    is_in_variant: bool,
    /// The line behind the comment that was seen last.
    next_line: usize,
    /// Constants whose texts `--help` prints.
    constants: HashSet<String>,
}

impl Texts {
    fn add_comment(&mut self, comment: &LitStr, style: &AttrStyle) {
        let (line, text) = (comment.span().start().line, comment.value());
        let text = text.strip_prefix(' ').unwrap_or(&text);
        match self.found.last_mut() {
            Some(last) if self.next_line == line => last.text += &format!("\n{text}"),
            _ => {
                // What is said of a whole file is for who comes to know the code, too.
                let of_file = matches!(style, AttrStyle::Inner(_)).then_some(Kind::Rustdoc);
                let kind = of_file.or(self.kind).unwrap_or(Kind::Internal);
                self.found.push(RustText { kind, line, text: text.to_owned() });
            }
        }
        self.next_line = comment.span().end().line + 1;
    }

    /// Of `help = "…", after_help = EXAMPLES`.
    fn add_attribute(&mut self, tokens: TokenStream) {
        let mut tokens = tokens.into_iter();
        let is_text =
            |token: &TokenTree| matches!(token, TokenTree::Ident(name) if CLAP_TEXTS.iter().any(|text| name == text));
        let is_comma = |token: &TokenTree| matches!(token, TokenTree::Punct(point) if point.as_char() == ',');
        while let Some(token) = tokens.next() {
            if is_text(&token) {
                let value = tokens.by_ref().take_while(|token| !is_comma(token)).collect();
                super::super::tree::each_token(value, &mut |token| match token {
                    TokenTree::Literal(literal) => self.found.extend(help_text(literal)),
                    TokenTree::Ident(name) => drop(self.constants.insert(name.to_string())),
                    _ => {}
                });
            }
        }
    }

    fn within(&mut self, kind: Kind, visit: impl FnOnce(&mut Self)) {
        let around = self.kind.replace(kind);
        visit(self);
        self.kind = around;
    }
}

fn kind_of(visibility: &Visibility) -> Kind {
    if matches!(visibility, Visibility::Public(_)) { Kind::Rustdoc } else { Kind::Internal }
}

fn kind_of_item(item: &Item) -> Kind {
    match item {
        Item::Struct(item) if is_of_clap(&item.attrs) => Kind::Help,
        Item::Enum(item) if is_of_clap(&item.attrs) => Kind::Help,
        Item::Const(item) => kind_of(&item.vis),
        Item::Enum(item) => kind_of(&item.vis),
        Item::Fn(item) => kind_of(&item.vis),
        Item::Mod(item) => kind_of(&item.vis),
        Item::Static(item) => kind_of(&item.vis),
        Item::Struct(item) => kind_of(&item.vis),
        Item::Trait(item) => kind_of(&item.vis),
        Item::Type(item) => kind_of(&item.vis),
        Item::Union(item) => kind_of(&item.vis),
        Item::Use(item) => kind_of(&item.vis),
        _ => Kind::Internal,
    }
}

fn is_of_clap(attributes: &[Attribute]) -> bool {
    let derives_one = |attribute: &Attribute| {
        let Meta::List(list) = &attribute.meta else { return false };
        let derived = list.tokens.clone().into_iter();
        let is_one =
            |token| matches!(token, TokenTree::Ident(name) if CLAP_DERIVES.iter().any(|derive| name == derive));
        list.path.is_ident("derive") && derived.into_iter().any(is_one)
    };
    attributes.iter().any(derives_one)
}

/// A string that `--help` prints. Indented lines of it are commands.
fn help_text(literal: &Literal) -> Option<RustText> {
    let Lit::Str(string) = Lit::new(literal.clone()) else { return None };
    let line = literal.span().start().line;
    let text = string.value();
    let prose: Vec<_> = text.lines().map(|line| if line.starts_with(' ') { "" } else { line }).collect();
    // Where the string begins with `\` and a line's end, its text begins a line later.
    let skipped = usize::from(literal.to_string().starts_with("\"\\\n"));
    Some(RustText { kind: Kind::Help, line: line + skipped, text: prose.join("\n") })
}

impl<'ast> Visit<'ast> for Texts {
    fn visit_item_mod(&mut self, module: &'ast ItemMod) {
        let is_for_tests = |attribute: &Attribute| {
            let Meta::List(list) = &attribute.meta else { return false };
            list.path.is_ident("cfg") && list.tokens.to_string().split(['(', ' ', ',', ')']).any(|word| word == "test")
        };
        if !module.attrs.iter().any(is_for_tests) {
            visit::visit_item_mod(self, module);
        }
    }

    fn visit_item(&mut self, item: &'ast Item) {
        self.within(kind_of_item(item), |texts| visit::visit_item(texts, item));
    }

    fn visit_impl_item_fn(&mut self, function: &'ast ImplItemFn) {
        self.within(kind_of(&function.vis), |texts| visit::visit_impl_item_fn(texts, function));
    }

    fn visit_variant(&mut self, variant: &'ast Variant) {
        self.is_in_variant = true;
        visit::visit_variant(self, variant);
        self.is_in_variant = false;
    }

    fn visit_field(&mut self, field: &'ast Field) {
        match self.kind {
            Some(Kind::Rustdoc) if !self.is_in_variant => {
                self.within(kind_of(&field.vis), |texts| visit::visit_field(texts, field));
            }
            _ => visit::visit_field(self, field),
        }
    }

    fn visit_attribute(&mut self, attribute: &'ast Attribute) {
        match &attribute.meta {
            Meta::NameValue(pair) if pair.path.is_ident("doc") => {
                if let Expr::Lit(ExprLit { lit: Lit::Str(comment), .. }) = &pair.value {
                    self.add_comment(comment, &attribute.style);
                }
            }
            Meta::List(list) if ["arg", "command", "value"].iter().any(|name| list.path.is_ident(name)) => {
                self.add_attribute(list.tokens.clone());
            }
            _ => {}
        }
    }
}

/// Finds the constants of those names.
struct Constants {
    named: HashSet<String>,
    found: Vec<RustText>,
}

impl<'ast> Visit<'ast> for Constants {
    fn visit_item_const(&mut self, item: &'ast ItemConst) {
        if !self.named.contains(&item.ident.to_string()) {
            return;
        }
        match &*item.expr {
            Expr::Lit(ExprLit { lit: Lit::Str(text), .. }) => self.found.extend(help_text(&text.token())),
            Expr::Macro(concat) if concat.mac.path.is_ident("concat") => {
                let parts =
                    concat.mac.parse_body_with(syn::punctuated::Punctuated::<Expr, Token![,]>::parse_terminated);
                for part in parts.into_iter().flatten() {
                    if let Expr::Lit(ExprLit { lit: Lit::Str(text), .. }) = part {
                        self.found.extend(help_text(&text.token()));
                    }
                }
            }
            _ => {}
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    /// Kind, line and text of each.
    fn found(code: &str) -> Vec<(Kind, usize, String)> {
        let texts = rust_texts(&syn::parse_file(code).unwrap());
        texts.into_iter().map(|text| (text.kind, text.line, text.text)).collect()
    }

    #[test]
    fn comments_are_put_together() {
        let code = "//! The file.\n//!\n//! More.\n\n/// A type\n/// of two lines.\n#[derive(Clone)]\n/// Apart.\nstruct A {\n    /// A field.\n    a: u8,\n}\n\
            // Not this.\n#[cfg(all(test, not(loom)))]\nmod tests {\n    /// Nor this.\n    fn a() {}\n}\n";
        let expected = [
            (Kind::Rustdoc, 1, "The file.\n\nMore."),
            (Kind::Internal, 5, "A type\nof two lines."),
            (Kind::Internal, 8, "Apart."),
            (Kind::Internal, 10, "A field."),
        ];
        assert_eq!(found(code), expected.map(|(kind, line, text)| (kind, line, text.to_owned())));
    }

    #[test]
    fn what_is_public_is_told_apart() {
        let code = "/// 1\npub enum A {\n    /// 2\n    B {\n        /// 3\n        c: u8,\n    },\n}\n/// 4\npub struct D {\n    /// 5\n    pub e: u8,\n    \
            /// 6\n    f: u8,\n}\nimpl D {\n    /// 7\n    pub fn g() {}\n    /// 8\n    fn h() {}\n}\n/// 9\npub trait I {\n    /// 10\n    fn j();\n}\n\
            /// 11\npub(crate) fn k() {}\n";
        let texts = found(code).into_iter().filter(|(kind, ..)| *kind == Kind::Rustdoc);
        assert_eq!(texts.map(|(.., text)| text).collect::<Vec<_>>(), ["1", "2", "3", "4", "5", "7", "9", "10"]);
    }

    #[test]
    fn what_help_prints_is_found() {
        let code = "/// Measure.\n#[derive(Args)]\n#[command(name = \"a\", after_help = help(EXAMPLES, MORE))]\nstruct A {\n    /// Seconds\n    \
            #[arg(long, help = \"Other\", value_name = \"N\")]\n    a: u8,\n}\nconst EXAMPLES: &str = \"\\\nExamples:\n  vmio a.\n\nIt runs.\";\n\
            const MORE: &str = concat!(\"One. \", \"Two.\");\nconst OTHER: &str = \"Nothing.\";\n";
        let expected = [
            (1, "Measure."),
            (5, "Seconds"),
            (6, "Other"),
            (10, "Examples:\n\n\nIt runs."),
            (14, "One. "),
            (14, "Two."),
        ];
        assert_eq!(found(code), expected.map(|(line, text)| (Kind::Help, line, text.to_owned())));
    }
}
