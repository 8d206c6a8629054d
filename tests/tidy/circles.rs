//! Finds circular modules: modules of a crate of which each uses the next and the last uses the first. None of them can
//! be read, moved or tested without the others.
//!
//! Uses are counted between siblings: if `b::y` uses `a::x`, then `b` uses `a`; if `a::x` uses `a::y`, that is internal
//! to `a`. So a folder counts as one module among its siblings, and its files are compared with each other. Uses
//! between a module and its children do not count. Using a name that another module only re-exports, such as `lib.rs`,
//! counts as a use of the module that defines it.
//!
//! Uses are read from the tokens of the code: every path that begins with `crate`, `super` or `self`, and every `use`.
//! Test-only code does not count.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

use proc_macro2::{Delimiter, TokenStream, TokenTree};

/// The names from the crate's root to a module.
type ModulePath = Vec<String>;

/// One name of a `use`, or one path of an expression or type, as written.
struct Use {
    segments: Vec<String>,
    line: usize,
}

/// What one module declares and uses.
#[derive(Default)]
struct Module {
    file: String,
    uses: Vec<Use>,
    /// What `use` imports into the module, by its local name.
    imports: BTreeMap<String, Vec<String>>,
}

/// Modules of one crate that use each other, and the lines where they do.
pub(crate) struct Circle {
    /// Their paths from the crate's root, such as `net::socket`.
    pub(crate) modules: Vec<String>,
    uses: Vec<String>,
}

impl std::fmt::Display for Circle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "modules in a circle: {}", self.modules.join(", "))?;
        self.uses
            .iter()
            .try_for_each(|line| write!(f, "\n    {line}"))
    }
}

/// The circles of the crate that begins with the file `root` and whose files are `sources`: paths relative to its `src`,
/// with their texts.
///
/// # Panics
/// If a file is not valid Rust, or a module has no file.
pub(crate) fn circles(root: &str, sources: &BTreeMap<&str, &str>) -> Vec<Circle> {
    let mut modules = Modules::default();
    modules.read_file(sources, root, Vec::new());
    modules.circles()
}

/// The modules of a crate, except test modules.
#[derive(Default)]
struct Modules(BTreeMap<ModulePath, Module>);

impl Modules {
    fn read_file(&mut self, sources: &BTreeMap<&str, &str>, file: &str, path: ModulePath) {
        let text = sources.get(file).expect("the caller has found the file");
        let tokens: TokenStream = match text.parse() {
            Ok(tokens) => tokens,
            Err(error) => panic!("{file}: {error}"),
        };
        self.read_module(sources, file, path, tokens);
    }

    fn read_module(
        &mut self,
        sources: &BTreeMap<&str, &str>,
        file: &str,
        path: ModulePath,
        tokens: TokenStream,
    ) {
        let mut reader = Reader::default();
        reader.read(tokens, true);
        let module = Module {
            file: file.to_owned(),
            uses: reader.uses,
            imports: reader.imports,
        };
        self.0.insert(path.clone(), module);
        for (name, body) in reader.children {
            let child: ModulePath = path.iter().cloned().chain([name]).collect();
            match body {
                Some(body) => self.read_module(sources, file, child, body),
                None => {
                    let place = child.join("/");
                    let files = [format!("{place}.rs"), format!("{place}/mod.rs")];
                    let found = files
                        .iter()
                        .find(|file| sources.contains_key(file.as_str()));
                    let found = found.unwrap_or_else(|| panic!("{file}: no file {}", files[0]));
                    self.read_file(sources, found, child);
                }
            }
        }
    }

    /// The module that defines what `segments` names within `from`; `None`: another crate does.
    fn definer(&self, from: &[String], segments: &[String], hops: usize) -> Option<ModulePath> {
        let mut at = from.to_vec();
        for (i, segment) in segments.iter().enumerate() {
            at.push(segment.clone());
            if self.0.contains_key(&at) {
                continue;
            }
            at.pop();
            match segment.as_str() {
                "crate" => at.clear(),
                "self" => {}
                "super" => drop(at.pop()),
                name => {
                    let import = self.0.get(&at).and_then(|module| module.imports.get(name));
                    return match import {
                        // An import that maps to itself names another crate: `use libc;`.
                        Some(import) if hops > 0 && (i > 0 || import != segments) => {
                            let rest = &segments[i + 1..];
                            self.definer(&at, &[import, rest].concat(), hops - 1)
                        }
                        // An item of this module; if it is the first segment, the path belongs to another crate.
                        _ => (i > 0).then_some(at),
                    };
                }
            }
        }
        Some(at)
    }

    fn circles(&self) -> Vec<Circle> {
        // For each module: which of its children use which others, and the lines where they do.
        type Uses = BTreeMap<(ModulePath, ModulePath), Vec<String>>;
        let mut below: BTreeMap<ModulePath, Uses> = BTreeMap::new();
        for (user, module) in &self.0 {
            for one in &module.uses {
                let Some(used) = self.definer(user, &one.segments, 16) else {
                    continue;
                };
                let shared = user.iter().zip(&used).take_while(|(a, b)| a == b).count();
                if shared == user.len() || shared == used.len() {
                    continue;
                }
                let siblings = (user[..=shared].to_vec(), used[..=shared].to_vec());
                let line = format!(
                    "{} uses {}: {}:{}: {}",
                    siblings.0.join("::"),
                    siblings.1.join("::"),
                    module.file,
                    one.line,
                    one.segments.join("::"),
                );
                let uses = below.entry(user[..shared].to_vec()).or_default();
                uses.entry(siblings).or_default().push(line);
            }
        }
        below.values().flat_map(components).collect()
    }
}

/// Everything `start` uses, directly or indirectly.
fn reached<'a>(
    uses: &'a BTreeMap<(ModulePath, ModulePath), Vec<String>>,
    start: &'a ModulePath,
) -> BTreeSet<&'a ModulePath> {
    let mut reached = BTreeSet::new();
    let mut next = vec![start];
    while let Some(at) = next.pop() {
        let used = uses.keys().filter(|(user, _)| user == at);
        next.extend(
            used.map(|(_, used)| used)
                .filter(|used| reached.insert(*used)),
        );
    }
    reached
}

/// The strongly connected components of two modules or more.
fn components(uses: &BTreeMap<(ModulePath, ModulePath), Vec<String>>) -> Vec<Circle> {
    let users: BTreeSet<&ModulePath> = uses.keys().map(|(user, _)| user).collect();
    let reached: BTreeMap<&ModulePath, BTreeSet<&ModulePath>> = users
        .into_iter()
        .map(|at| (at, reached(uses, at)))
        .collect();
    let mutual = |at: &ModulePath| -> BTreeSet<&ModulePath> {
        let back = |other: &&&ModulePath| reached.get(**other).is_some_and(|r| r.contains(at));
        reached[at].iter().filter(back).copied().collect()
    };
    let circles: BTreeSet<BTreeSet<&ModulePath>> = reached.keys().map(|at| mutual(at)).collect();
    let circles = circles.into_iter().filter(|circle| !circle.is_empty());
    circles
        .map(|circle| Circle {
            modules: circle.iter().map(|path| path.join("::")).collect(),
            uses: uses
                .iter()
                .filter(|((user, used), _)| circle.contains(user) && circle.contains(used))
                .flat_map(|(_, lines)| lines.clone())
                .collect(),
        })
        .collect()
}

/// Reads the tokens of one module.
#[derive(Default)]
struct Reader {
    uses: Vec<Use>,
    imports: BTreeMap<String, Vec<String>>,
    /// Modules declared here, with their bodies if they are inline.
    children: Vec<(String, Option<TokenStream>)>,
}

impl Reader {
    /// Reads `tokens`: the module's items or, if `is_top` is false, the inside of one.
    fn read(&mut self, tokens: TokenStream, is_top: bool) {
        let tokens: Vec<TokenTree> = tokens.into_iter().collect();
        let mut i = 0;
        while i < tokens.len() {
            let rest = &tokens[i..];
            if is_punct(rest.first(), '#') && is_for_tests(rest.get(1)) {
                i += 2 + item_len(&rest[2..]);
                continue;
            }
            match &tokens[i] {
                // `pub(in crate::a)` uses nothing.
                TokenTree::Group(_) if is_word(tokens[..i].last(), "pub") => {}
                TokenTree::Group(group) => self.read(group.stream(), false),
                TokenTree::Ident(word) if word == "use" => {
                    let end = rest.iter().position(|token| is_punct(Some(token), ';'));
                    let end = end.unwrap_or(rest.len());
                    self.read_use(&rest[1..end], &[], is_top);
                    i += end;
                }
                TokenTree::Ident(word) if is_top && word == "mod" => {
                    let name = rest.get(1).map(ToString::to_string).unwrap_or_default();
                    let body = match rest.get(2) {
                        Some(TokenTree::Group(body)) => Some(body.stream()),
                        _ => None,
                    };
                    self.children.push((name, body));
                    i += 2;
                }
                TokenTree::Ident(word) if is_start(word) => i += self.read_path(rest),
                _ => {}
            }
            i += 1;
        }
    }

    /// Reads a path at the start of `tokens`; returns how many tokens follow the first.
    fn read_path(&mut self, tokens: &[TokenTree]) -> usize {
        let mut segments = vec![tokens[0].to_string()];
        let mut end = 0;
        while is_separator(&tokens[end + 1..]) {
            let Some(TokenTree::Ident(segment)) = tokens.get(end + 3) else {
                break;
            };
            segments.push(segment.to_string());
            end += 3;
        }
        if segments.len() > 1 {
            let line = tokens[0].span().start().line;
            self.uses.push(Use { segments, line });
        }
        end
    }

    /// Reads what follows `use`, or the part of it that follows `start`.
    fn read_use(&mut self, tokens: &[TokenTree], start: &[String], is_top: bool) {
        for one in tokens.split(|token| is_punct(Some(token), ',')) {
            let mut segments = start.to_vec();
            let mut words = one.iter();
            let mut name = None;
            while let Some(token) = words.next() {
                match token {
                    TokenTree::Ident(word) if word == "as" => {
                        name = words.next().map(ToString::to_string);
                    }
                    TokenTree::Ident(word) if word == "self" && !segments.is_empty() => {}
                    TokenTree::Ident(word) => segments.push(word.to_string()),
                    TokenTree::Group(group) => {
                        let within: Vec<TokenTree> = group.stream().into_iter().collect();
                        self.read_use(&within, &segments, is_top);
                        segments.clear();
                    }
                    // `*` counts as a use of the module before it.
                    _ => {}
                }
            }
            let Some(last) = segments.last().filter(|_| !one.is_empty()) else {
                continue;
            };
            if is_top {
                let name = name.unwrap_or_else(|| last.clone());
                self.imports.insert(name, segments.clone());
            }
            let line = one[0].span().start().line;
            self.uses.push(Use { segments, line });
        }
    }
}

fn is_word(token: Option<&TokenTree>, word: &str) -> bool {
    matches!(token, Some(TokenTree::Ident(ident)) if ident == word)
}

fn is_punct(token: Option<&TokenTree>, c: char) -> bool {
    matches!(token, Some(TokenTree::Punct(punct)) if punct.as_char() == c)
}

fn is_separator(tokens: &[TokenTree]) -> bool {
    is_punct(tokens.first(), ':') && is_punct(tokens.get(1), ':')
}

/// Whether a path that begins with this word is within the crate.
fn is_start(word: &proc_macro2::Ident) -> bool {
    ["crate", "self", "super"].iter().any(|start| word == start)
}

/// Whether this attribute makes what follows test-only.
fn is_for_tests(attribute: Option<&TokenTree>) -> bool {
    let text = attribute.map(ToString::to_string).unwrap_or_default();
    let text: String = text.split_whitespace().collect();
    text.starts_with("[cfg(test)") || text.starts_with("[cfg(all(test,")
}

/// The number of tokens of the item, statement, field or variant at the start of `tokens`.
fn item_len(tokens: &[TokenTree]) -> usize {
    const ITEMS: [&str; 15] = [
        "async",
        "const",
        "enum",
        "extern",
        "fn",
        "impl",
        "let",
        "macro_rules",
        "mod",
        "static",
        "struct",
        "trait",
        "type",
        "unsafe",
        "use",
    ];
    // Attributes and the visibility first.
    let mut start = 0;
    while is_punct(tokens.get(start), '#') {
        start += 2;
    }
    if is_word(tokens.get(start), "pub") {
        start += 1;
        let group = matches!(tokens.get(start), Some(TokenTree::Group(_)));
        start += usize::from(group);
    }
    let is_item = ITEMS.iter().any(|word| is_word(tokens.get(start), word));
    let ends = |i: usize| match &tokens[i] {
        TokenTree::Punct(punct) => punct.as_char() == if is_item { ';' } else { ',' },
        TokenTree::Group(group) => {
            let is_path = i > 0 && is_punct(tokens.get(i - 1), ':');
            is_item && group.delimiter() == Delimiter::Brace && !is_path
        }
        _ => false,
    };
    let end = (start..tokens.len()).find(|i| ends(*i));
    end.map_or(tokens.len(), |end| end + 1)
}

/// The circles of a crate made of `sources`, in words: `a b, c::x c::y`.
fn found(sources: &[(&str, &str)]) -> String {
    let circles = circles("lib.rs", &sources.iter().copied().collect());
    let mut words = String::new();
    for circle in circles {
        let comma = if words.is_empty() { "" } else { ", " };
        write!(words, "{comma}{}", circle.modules.join(" ")).expect("a String takes all");
    }
    words
}

#[test]
fn modules_that_only_use_what_is_below_them_make_no_circle() {
    assert_eq!(
        found(&[
            ("lib.rs", "pub mod a; mod b; mod c; pub use a::A;"),
            ("a.rs", "use crate::{b::B, c}; pub struct A(B, c::C);"),
            (
                "b.rs",
                "use crate::c::C; use std::fmt; pub(in crate::a) struct B(C);"
            ),
            (
                "c.rs",
                "//! Below [`crate::a`].\npub struct C; fn f(c: C) { self::f(c) }"
            ),
        ]),
        ""
    );
}

#[test]
fn two_modules_that_use_each_other_are_a_circle() {
    let sources = [
        ("lib.rs", "mod a; mod b; mod c;"),
        ("a.rs", "use crate::b::B;\npub struct A(B);"),
        (
            "b.rs",
            "pub struct B;\nfn f() {\n    g(&crate::a::A::new(B)) }",
        ),
        ("c.rs", "use crate::{a, b};"),
    ];
    assert_eq!(found(&sources), "a b");
    let circles = circles("lib.rs", &sources.into_iter().collect());
    assert_eq!(
        circles[0].to_string(),
        "modules in a circle: a, b\n    a uses b: a.rs:1: crate::b::B\n    \
         b uses a: b.rs:3: crate::a::A::new"
    );
}

#[test]
fn each_circle_is_told_once_and_whole() {
    assert_eq!(
        found(&[
            ("lib.rs", "mod a; mod b; mod c; mod d; mod e; mod f;"),
            ("a.rs", "use crate::b::B;"),
            ("b.rs", "use crate::{c, e::E};"),
            ("c.rs", "use super::{a::{self, A as Other}, b};"),
            ("d.rs", "use crate::a;"),
            ("e.rs", "type E = crate::f::F;"),
            ("f.rs", "use crate::e::E;"),
        ]),
        "a b c, e f"
    );
}

#[test]
fn a_name_that_another_module_passes_on_is_a_use_of_where_it_comes_from() {
    let through_the_root = [
        (
            "lib.rs",
            "mod a; mod b; pub use a::A; pub use b::{B as Renamed, other};",
        ),
        ("a.rs", "use crate::Renamed;"),
        ("b.rs", "fn f(_: crate::A) {}"),
    ];
    assert_eq!(found(&through_the_root), "a b");
    let through_a_folder = [
        ("lib.rs", "mod a; mod b; mod c;"),
        (
            "a/mod.rs",
            "mod x; pub(crate) use crate::b::B; pub use x::X;",
        ),
        ("a/x.rs", "use super::B;"),
        ("b.rs", "use crate::c::C;"),
        ("c.rs", "use crate::a::B;"),
    ];
    assert_eq!(found(&through_a_folder), "b c");
}

#[test]
fn a_folder_is_one_module_outside_and_its_files_are_modules_inside() {
    let between_folders = [
        ("lib.rs", "mod a; mod b;"),
        ("a/mod.rs", "mod x; mod y;"),
        ("a/x.rs", "use crate::b::B;"),
        ("a/y.rs", ""),
        ("b.rs", "use crate::a::y::Y;"),
    ];
    assert_eq!(found(&between_folders), "a b");
    let within = [
        ("lib.rs", "mod a;"),
        ("a.rs", "mod x; mod y; pub use y::Y;"),
        ("a/x.rs", "use super::Y;"),
        ("a/y.rs", "mod z { use super::super::x; }"),
    ];
    assert_eq!(found(&within), "a::x a::y");
    let with_its_parent = [
        ("lib.rs", "mod a; pub struct Root;"),
        ("a/mod.rs", "mod x; use x::X; struct A;"),
        ("a/x.rs", "use super::A; use crate::Root;"),
    ];
    assert_eq!(found(&with_its_parent), "");
}

#[test]
fn what_is_for_tests_alone_makes_no_circle() {
    assert_eq!(
        found(&[
            ("lib.rs", "mod a; mod b; #[cfg(test)] mod tests;"),
            (
                "a.rs",
                "use crate::b; struct A { #[cfg(test)] b: Vec<crate::a::A>, c: C }
                 #[cfg(test)] #[path = \"a_tests.rs\"] mod tests;"
            ),
            (
                "b.rs",
                "#[cfg(test)] use crate::a::{X, Y}; #[cfg(all(test, unix))] fn f() { crate::a::f() }
                 #[cfg(test)] mod tests { use crate::a::A; }"
            ),
        ]),
        ""
    );
    let after_them = [
        ("lib.rs", "mod a; mod b;"),
        ("a.rs", "use crate::b;"),
        ("b.rs", "#[cfg(test)] use std::{fmt, io};\nuse crate::a::A;"),
    ];
    assert_eq!(found(&after_them), "a b");
}
