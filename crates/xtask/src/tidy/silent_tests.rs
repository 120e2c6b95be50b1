//! A test that cannot run says so, by `test_depth::skipped`.

use std::collections::{HashMap, HashSet};

use anyhow::Result;
use proc_macro2::{TokenStream, TokenTree};
use syn::visit::{self, Visit};
use syn::{
    Arm, Block, Expr, ExprCall, ExprClosure, ExprLoop, ExprMethodCall, ExprWhile, ImplItemFn, Item, ItemFn, ItemImpl,
    ItemMod,
};
use syn::{Local, Macro, Stmt, Type};

use super::{Breach, Tree};

/// Say why a test does not run.
const HELPERS: [&str; 2] = ["skipped", "skipped_outside_ci"];

/// Where they are.
const HELPERS_OF: &str = "crates/test-depth/";

/// What else a test may ask before it returns: whether it is a child of its own, which has done its part by then, or runs as somebody
/// wants it to.
const ROLES: [&str; 4] = ["is_child", "seeds_are_chosen", "env::var", "env::var_os"];

/// How a message begins that the helpers would print.
const MESSAGES: [&str; 2] = ["\"skipped: ", "\"left out: "];

/// Tests that return where a condition does not hold, and do not say why; messages that do not go through the helpers.
pub fn check(tree: &Tree) -> Result<Vec<Breach>> {
    let mut crates: HashMap<&str, Functions> = HashMap::new();
    let mut breaches = Vec::new();
    for (name, file) in
        tree.rust()?.iter().filter(|(name, _)| name.starts_with("crates/") && !name.starts_with(HELPERS_OF))
    {
        let package = name.split('/').nth(1).unwrap_or_default();
        let functions = crates.entry(package).or_default();
        functions.file = name;
        functions.is_in_tests = name.contains("/tests/");
        functions.visit_file(file);
    }
    for functions in crates.into_values() {
        for (file, line) in &functions.messages {
            breaches.push(Breach::new(file, *line, "a message by hand: use test_depth::skipped"));
        }
        for Return { file, line, asked } in &functions.returns {
            if !asked.iter().any(|name| functions.leads_to(name, &mut HashSet::new())) {
                breaches.push(Breach::new(
                    file,
                    *line,
                    "the test returns and does not say why: use test_depth::skipped",
                ));
            }
        }
    }
    breaches.sort_by(|one, other| (&one.file, one.line).cmp(&(&other.file, other.line)));
    Ok(breaches)
}

/// Where a test returns, and the functions that were asked before.
struct Return<'a> {
    file: &'a str,
    line: usize,
    asked: HashSet<String>,
}

/// The functions of a crate and its tests.
#[derive(Default)]
struct Functions<'a> {
    file: &'a str,
    /// Of functions of this name, those that they call. Functions of types go by both names.
    calls: HashMap<String, HashSet<String>>,
    returns: Vec<Return<'a>>,
    messages: Vec<(&'a str, usize)>,
    is_in_tests: bool,
    of_type: Option<String>,
}

impl Functions<'_> {
    /// Whether a function calls a helper, or asks for a role, itself or by others.
    fn leads_to(&self, name: &str, seen: &mut HashSet<String>) -> bool {
        if HELPERS.iter().chain(&ROLES).any(|end| *end == name) {
            return true;
        }
        let is_new = seen.insert(name.to_owned());
        is_new && self.calls.get(name).is_some_and(|calls| calls.iter().any(|called| self.leads_to(called, seen)))
    }

    fn add(&mut self, name: String, body: &Block) {
        let mut calls = Calls::default();
        calls.visit_block(body);
        self.calls.entry(name).or_default().extend(calls.names);
    }
}

impl<'ast> Visit<'ast> for Functions<'_> {
    fn visit_item_fn(&mut self, function: &'ast ItemFn) {
        let is_test = |path: &syn::Path| path.segments.last().is_some_and(|last| last.ident == "test");
        if function.attrs.iter().any(|attribute| is_test(attribute.path())) {
            let mut returns = Returns::default();
            returns.visit_test(&function.block);
            let file = self.file;
            self.returns.extend(returns.found.into_iter().map(|(line, asked)| Return { file, line, asked }));
        }
        self.add(function.sig.ident.to_string(), &function.block);
        visit::visit_item_fn(self, function);
    }

    fn visit_item_mod(&mut self, module: &'ast ItemMod) {
        let around = self.is_in_tests;
        self.is_in_tests |= module.ident == "tests";
        visit::visit_item_mod(self, module);
        self.is_in_tests = around;
    }

    fn visit_item_impl(&mut self, item: &'ast ItemImpl) {
        if let Type::Path(path) = &*item.self_ty {
            self.of_type = path.path.segments.last().map(|last| last.ident.to_string());
        }
        visit::visit_item_impl(self, item);
    }

    fn visit_impl_item_fn(&mut self, function: &'ast ImplItemFn) {
        let name = format!("{}::{}", self.of_type.as_deref().unwrap_or_default(), function.sig.ident);
        self.add(name, &function.block);
        visit::visit_impl_item_fn(self, function);
    }

    fn visit_macro(&mut self, invoked: &'ast Macro) {
        let prints = ["eprint", "eprintln", "print", "println"].iter().any(|name| invoked.path.is_ident(name));
        if let Some(TokenTree::Literal(first)) = invoked.tokens.clone().into_iter().next()
            && self.is_in_tests
            && prints
            && MESSAGES.iter().any(|message| first.to_string().starts_with(message))
        {
            self.messages.push((self.file, first.span().start().line));
        }
    }
}

/// The functions that code calls, by name; those of types by both names, methods by their own.
#[derive(Default)]
struct Calls {
    names: HashSet<String>,
}

impl Calls {
    fn of(expression: &Expr) -> HashSet<String> {
        let mut calls = Calls::default();
        calls.visit_expr(expression);
        calls.names
    }

    /// What tokens of a macro call: names before round brackets.
    fn add_tokens(&mut self, tokens: TokenStream) {
        let mut last = None;
        for token in tokens {
            match token {
                TokenTree::Ident(name) => last = Some(name.to_string()),
                TokenTree::Group(group) => {
                    self.names.extend(last.take());
                    self.add_tokens(group.stream());
                }
                _ => last = None,
            }
        }
    }
}

/// Where it stands: that of a type, or of the environment, by both names.
fn name_of(path: &syn::Path) -> Option<String> {
    let mut names = path.segments.iter().rev().map(|segment| segment.ident.to_string());
    let (own, around) = (names.next()?, names.next());
    let around = around.filter(|around| around == "env" || around.starts_with(char::is_uppercase));
    Some(around.map_or(own.clone(), |around| format!("{around}::{own}")))
}

impl<'ast> Visit<'ast> for Calls {
    fn visit_expr_call(&mut self, call: &'ast ExprCall) {
        if let Expr::Path(called) = &*call.func {
            self.names.extend(name_of(&called.path));
        }
        visit::visit_expr_call(self, call);
    }

    fn visit_expr_method_call(&mut self, call: &'ast ExprMethodCall) {
        self.names.insert(call.method.to_string());
        visit::visit_expr_method_call(self, call);
    }

    fn visit_macro(&mut self, invoked: &'ast Macro) {
        self.add_tokens(invoked.tokens.clone());
    }
}

/// Where a test returns directly behind a condition: what was asked there. What closures and endless loops do is their own.
#[derive(Default)]
struct Returns {
    found: Vec<(usize, HashSet<String>)>,
}

impl Returns {
    fn visit_test(&mut self, body: &Block) {
        for statement in &body.stmts {
            // Within loops and branches a test has begun, and may be done.
            if let Stmt::Expr(Expr::If(condition), _) = statement
                && condition.else_branch.is_none()
                && let Some(line) = silent_return(&condition.then_branch)
            {
                self.found.push((line, Calls::of(&condition.cond)));
            }
        }
        self.visit_block(body);
    }
}

/// The line of `return` or `return Ok(())`, where a block has nothing else.
fn silent_return(block: &Block) -> Option<usize> {
    match &block.stmts[..] {
        [Stmt::Expr(expression, _)] => silently_returns(expression),
        _ => None,
    }
}

fn silently_returns(expression: &Expr) -> Option<usize> {
    let Expr::Return(returned) = expression else { return None };
    let is_silent = match returned.expr.as_deref() {
        None => true,
        Some(Expr::Call(call)) => {
            matches!(&*call.func, Expr::Path(path) if path.path.is_ident("Ok"))
                && matches!(call.args.first(), Some(Expr::Tuple(nothing)) if nothing.elems.is_empty())
        }
        Some(_) => false,
    };
    is_silent.then(|| returned.return_token.span.start().line)
}

impl<'ast> Visit<'ast> for Returns {
    fn visit_local(&mut self, local: &'ast Local) {
        if let Some(init) = &local.init
            && let Some((_, otherwise)) = &init.diverge
            && let Expr::Block(block) = &**otherwise
            && let Some(line) = silent_return(&block.block)
        {
            self.found.push((line, Calls::of(&init.expr)));
        }
        visit::visit_local(self, local);
    }

    fn visit_arm(&mut self, arm: &'ast Arm) {
        if let Some(line) = silently_returns(&arm.body) {
            self.found.push((line, HashSet::new()));
        }
        visit::visit_arm(self, arm);
    }

    fn visit_expr_closure(&mut self, _: &'ast ExprClosure) {}

    fn visit_expr_loop(&mut self, _: &'ast ExprLoop) {}

    fn visit_expr_while(&mut self, _: &'ast ExprWhile) {}

    fn visit_item(&mut self, _: &'ast Item) {}
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    /// The lines of a test's body that are breaches.
    fn lines_of(body: &str) -> Vec<usize> {
        let support = "fn is_there() -> bool { is_root(\"a\") }\nfn is_root(what: &str) -> bool { test_depth::skipped(what); true }\n\
            struct Disk;\nimpl Disk { fn new() -> Option<Disk> { test_depth::skipped_outside_ci(1); None } }\n\
            struct Other;\nimpl Other { fn new() -> Option<Other> { None } }\nfn ask() -> bool { support::is_child(NAME) }\n";
        let test = format!("#[test]\nfn a() {{\n{body}\n}}\nfn no_test() {{ if b() {{ return; }} }}\n");
        let tree = Tree::of(&[("crates/a/tests/support.rs", support), ("crates/a/tests/a.rs", &test)]);
        let found = check(&tree).unwrap();
        assert!(found.iter().all(|breach| breach.file == "crates/a/tests/a.rs"));
        found.into_iter().map(|breach| breach.line - 2).collect()
    }

    #[test]
    fn a_test_that_returns_silently_is_found() {
        assert_eq!(lines_of("if !exists() { return; }"), [1]);
        assert_eq!(lines_of("if !exists() {\nreturn Ok(());\n}"), [2]);
        assert_eq!(lines_of("let Some(a) = Other::new() else { return };"), [1]);
        assert_eq!(lines_of("for a in b() {\nlet Ok(a) = a else { return };\n}"), [2]);
        assert_eq!(lines_of("match a() {\nOk(a) => b(a),\nErr(_) => return,\n}"), [3]);
    }

    #[test]
    fn a_test_that_says_why_is_none() {
        assert_eq!(lines_of("if !is_there() { return; }"), [0; 0]);
        assert_eq!(lines_of("if a() || !support::is_root(\"b\") { return Ok(()); }"), [0; 0]);
        assert_eq!(lines_of("let Some(a) = Disk::new()? else { return Ok(()) };"), [0; 0]);
        assert_eq!(lines_of("if !exists() { return test_depth::skipped(\"nothing is there\"); }"), [0; 0]);
        assert_eq!(lines_of("if !exists() { return leave_out(\"a\"); }"), [0; 0]);
        assert_eq!(lines_of("if !matches!(is_there(), true) { return; }"), [0; 0]);
    }

    #[test]
    fn a_test_that_has_done_its_part_is_none() {
        assert_eq!(lines_of("if is_child(\"a\") { return; }"), [0; 0]);
        assert_eq!(lines_of("if ask() { return; }"), [0; 0]);
        assert_eq!(lines_of("let Ok(a) = std::env::var(A) else { return };"), [0; 0]);
        assert_eq!(lines_of("loop { let Some(a) = b() else { return }; }"), [0; 0]);
        assert_eq!(lines_of("for a in b() { if a == 3 { return; } }"), [0; 0]);
        assert_eq!(lines_of("c(|| { if a() { return; } });"), [0; 0]);
    }

    #[test]
    fn messages_are_those_of_the_helper() {
        assert_eq!(lines_of("if !exists() { return println!(\"skipped: {a}\"); }"), [1]);
        assert_eq!(lines_of("eprintln!(\"left out: a\");\nprintln!(\"a is skipped: b\");"), [1]);
    }
}
