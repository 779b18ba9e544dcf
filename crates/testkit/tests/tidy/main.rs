//! Conventions of the repository that no compiler checks, in the manner of TigerBeetle's `tidy.zig`.
//!
//! The test reads every tracked `*.rs` and `*.md` file and lists each breach as `FILE:LINE: rule: what was found`. A
//! rule is a function from sources to breaches, and has a test that plants a breach.

mod arrows;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::Path;
use std::process::Command;

/// Longest line that holds a comment, in characters: `max_width` of `rustfmt.toml`.
const COLUMNS_MAX: usize = 120;

/// Breaches printed in full; a run stops listing after them.
const BREACHES_MAX: usize = 200;

/// Words for an actor that a sentence should name: the caller, a writer, the kernel.
const VAGUE_ACTORS: [&str; 3] = ["somebody", "nobody", "whoever"];

/// Words that a comment may not open with: it states a fact, not a question.
const QUESTION_WORDS: [&str; 9] = ["What", "Who", "Whose", "Where", "How", "Why", "Which", "When", "Whether"];

/// Marks of unfinished work in comments and documents.
const MARKERS: [&str; 6] = ["TODO", "FIXME", "XXX", "HACK", "wip", "WIP"];

/// Macros of unfinished work in code.
const MARKER_MACROS: [&str; 3] = ["dbg!", "todo!", "unimplemented!"];

/// Places outside the repository that a reader cannot open.
const OUTSIDE: [&str; 5] = ["../shared", "seams.md", "design.md", "spec/", "/work/"];

/// Folders of the repository: a path that starts with one of them must exist.
const FOLDERS: [&str; 7] = ["docs/", "crates/", "tests/", "fuzz/", "tools/", "lab-runs/", "bench-runs/"];

/// Words that stand for a part of a path that the reader chooses.
const PLACEHOLDERS: [&str; 2] = ["NAME", "DATE"];

/// Paths that tools make and git ignores.
const GENERATED: [&str; 1] = ["fuzz/artifacts"];

/// Public types that share a name on purpose, by crate: the two kinds of mutex of the runtime, and the parts of two
/// suites that correspond to each other.
const SAME_NAME: [(&str, &str); 4] =
    [("runtime", "Mutex"), ("runtime", "MutexGuard"), ("testkit", "Plan"), ("testkit", "Work")];

/// One place that breaks a rule.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Breach {
    path: String,
    line: usize,
    rule: &'static str,
    found: String,
}

impl fmt::Display for Breach {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}: {}", self.path, self.line, self.rule, self.found)
    }
}

/// A line of a comment or of a document.
struct Line {
    number: usize,
    text: String,
    /// True for the first line of a comment.
    opens: bool,
    /// True for lines of a fenced block of code.
    fenced: bool,
}

/// A file, taken apart.
struct Source {
    path: String,
    text: String,
    /// Comments of a Rust file, or all lines of a document.
    lines: Vec<Line>,
    /// Code of a Rust file with spaces in place of comments, strings and characters; empty for documents.
    code: String,
}

impl Source {
    fn new(path: &str, text: &str) -> Source {
        let (mut lines, code) = if path.ends_with(".rs") { lex(text) } else { (document(text), String::new()) };
        let mut fenced = false;
        for line in &mut lines {
            let is_fence = line.text.trim_start().starts_with("```");
            fenced = fenced && !line.opens;
            line.fenced = fenced || is_fence;
            fenced ^= is_fence;
        }
        Source { path: path.to_owned(), text: text.to_owned(), lines, code }
    }

    fn breach(&self, line: usize, rule: &'static str, found: impl Into<String>) -> Breach {
        Breach { path: self.path.clone(), line, rule, found: found.into() }
    }

    /// Returns the lines that are sentences, with spaces in place of code: number, text, and whether one opens a
    /// comment.
    fn prose(&self) -> impl Iterator<Item = (usize, String, bool)> {
        let lines = self.lines.iter().filter(|line| !line.fenced);
        lines.map(|line| (line.number, without_code(&line.text), line.opens))
    }
}

fn document(text: &str) -> Vec<Line> {
    let line = |(number, text): (usize, &str)| Line { number, text: text.to_owned(), opens: false, fenced: false };
    (1..).zip(text.lines()).map(line).collect()
}

/// Replaces what stands between backticks by spaces.
fn without_code(text: &str) -> String {
    let mut inside = false;
    let blank = |c: char| {
        inside ^= c == '`';
        if inside || c == '`' { ' ' } else { c }
    };
    text.chars().map(blank).collect()
}

/// Takes a Rust file apart into its comments, and its code with spaces in place of comments and literals.
fn lex(text: &str) -> (Vec<Line>, String) {
    let (mut lines, mut code) = (Vec::<Line>::new(), String::with_capacity(text.len()));
    let (mut rest, mut number) = (text, 1);
    // Line number and marker of a comment that fills its line: the next such line continues it.
    let mut before = (0, "");
    while let Some(first) = rest.chars().next() {
        let len = token_len(rest, code.chars().next_back());
        let token = &rest[..len];
        if token.starts_with("//") || token.starts_with("/*") {
            let marker = ["//!", "///", "//", "/*"].into_iter().find(|marker| token.starts_with(marker)).unwrap_or("");
            let fills_line = code.lines().next_back().is_none_or(|line| line.trim().is_empty()) || code.ends_with('\n');
            for (at, text) in (number..).zip(token[marker.len()..].lines()) {
                let continues = at > number || fills_line && before == (at - 1, marker);
                lines.push(Line { number: at, text: text.to_owned(), opens: !continues, fenced: false });
            }
            before = if fills_line { (number, marker) } else { (0, "") };
        }
        let keeps = len == first.len_utf8()
            || token.starts_with(|c: char| c.is_alphanumeric() || c == '_') && !is_literal(token);
        if keeps {
            code.push_str(token);
        } else {
            code.extend(token.chars().map(|c| if c == '\n' { '\n' } else { ' ' }));
        }
        number += token.matches('\n').count();
        rest = &rest[len..];
    }
    (lines, code)
}

/// Returns true for string and character literals with a prefix.
fn is_literal(token: &str) -> bool {
    token.ends_with(['"', '\'', '#'])
}

/// Returns the length in bytes of the comment, literal, word or character at the start of `rest`.
fn token_len(rest: &str, before: Option<char>) -> usize {
    let to = |end: Option<usize>| end.unwrap_or(rest.len());
    if rest.starts_with("//") {
        return to(rest.find('\n'));
    }
    if rest.starts_with("/*") {
        return block_comment_len(rest);
    }
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    let word = to(rest.find(|c| !is_word(c)));
    let in_word = before.is_some_and(is_word);
    let prefix = if !in_word && ["b", "c", "r", "br", "cr"].contains(&&rest[..word]) { word } else { 0 };
    let literal = &rest[prefix..];
    if rest[..prefix].ends_with('r') {
        let hashes = literal.find(|c| c != '#').unwrap_or(0);
        if literal[hashes..].starts_with('"') {
            let end = format!("\"{}", "#".repeat(hashes));
            let body = prefix + hashes + 1;
            return to(rest[body..].find(&end).map(|at| body + at + end.len()));
        }
    } else if literal.starts_with('"') {
        return prefix + quoted_len(literal, '"');
    } else if let Some(body) = literal.strip_prefix('\'') {
        // A quote that is not closed after one character begins a lifetime.
        let mut chars = body.chars();
        let closed = chars.next() == Some('\\') || chars.next() == Some('\'');
        return prefix + if closed { quoted_len(literal, '\'') } else { 1 };
    }
    if word > 0 { word } else { rest.chars().next().map_or(0, char::len_utf8) }
}

fn quoted_len(literal: &str, quote: char) -> usize {
    let mut escaped = true;
    let end = literal.find(|c| {
        let is_end = c == quote && !escaped;
        escaped = c == '\\' && !escaped;
        is_end
    });
    end.map_or(literal.len(), |at| at + 1)
}

fn block_comment_len(rest: &str) -> usize {
    let (mut at, mut depth) = (0, 0);
    loop {
        let here = &rest[at..];
        let step = match here {
            "" => return at,
            _ if here.starts_with("/*") => (2, 1),
            _ if here.starts_with("*/") => (2, -1),
            _ => (here.chars().next().map_or(1, char::len_utf8), 0),
        };
        at += step.0;
        depth += step.1;
        if depth == 0 {
            return at;
        }
    }
}

fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| !c.is_alphanumeric() && c != '_').filter(|word| !word.is_empty())
}

/// Comments and documents name the actor.
fn vague_actors(source: &Source) -> Vec<Breach> {
    let mut breaches = Vec::new();
    for (number, text, _) in source.prose() {
        let vague = words(&text).filter(|word| VAGUE_ACTORS.contains(&word.to_lowercase().as_str()));
        breaches.extend(vague.map(|word| source.breach(number, "name the actor", word)));
    }
    breaches
}

/// Comments do not open with a question word.
fn question_openers(source: &Source) -> Vec<Breach> {
    let opens = |(number, text, opens): (usize, String, bool)| {
        let word = text.split_whitespace().next()?.trim_end_matches(|c: char| !c.is_alphanumeric());
        let breaks = opens && QUESTION_WORDS.contains(&word);
        breaks.then(|| source.breach(number, "open with a statement", word))
    };
    source.prose().filter_map(opens).collect()
}

/// Nothing is marked as unfinished.
fn leftover_markers(source: &Source) -> Vec<Breach> {
    let mut breaches = Vec::new();
    for (number, text, _) in source.prose() {
        let marks = words(&text).filter(|word| MARKERS.contains(word));
        breaches.extend(marks.map(|word| source.breach(number, "finish it", word)));
    }
    for (number, line) in (1..).zip(source.code.lines()) {
        let called = |name: &&&str| line.match_indices(**name).any(|(at, _)| !ends_in_word(&line[..at]));
        breaches.extend(MARKER_MACROS.iter().filter(called).map(|name| source.breach(number, "finish it", *name)));
    }
    breaches
}

fn ends_in_word(text: &str) -> bool {
    text.ends_with(|c: char| c.is_alphanumeric() || c == '_')
}

/// Lines with comments fit the width that rustfmt gives to code. Rows of tables cannot be broken.
fn long_comments(source: &Source) -> Vec<Breach> {
    if source.code.is_empty() {
        return Vec::new();
    }
    let all: Vec<&str> = source.text.lines().collect();
    let can_break = |text: &str| !text.trim_start().starts_with('|') && text.trim().contains(' ');
    let columns = |line: &Line| all.get(line.number - 1).map_or(0, |whole| whole.chars().count());
    let long = source.lines.iter().filter(|line| can_break(&line.text) && columns(line) > COLUMNS_MAX);
    long.map(|line| source.breach(line.number, "wrap at 120 columns", format!("{} columns", columns(line)))).collect()
}

/// Nothing refers to a place outside the repository.
fn outside_names(source: &Source) -> Vec<Breach> {
    let mut breaches = Vec::new();
    for line in &source.lines {
        let starts = |at: usize| !line.text[..at].ends_with(|c: char| c.is_alphanumeric() || "_-/.".contains(c));
        let named = |name: &&&str| line.text.match_indices(**name).any(|(at, _)| starts(at));
        let named = OUTSIDE.iter().filter(named);
        breaches.extend(named.map(|name| source.breach(line.number, "refer to the repository only", *name)));
    }
    breaches
}

/// Paths and relative links in comments and documents exist. `tracked` holds all files.
fn dead_references(source: &Source, tracked: &BTreeSet<String>) -> Vec<Breach> {
    let mut breaches = Vec::new();
    for line in &source.lines {
        let dead = paths_in(&line.text).filter(|path| !resolves(&source.path, path, tracked));
        let mut dead: Vec<String> = dead.map(str::to_owned).collect();
        if source.code.is_empty() && !line.fenced {
            dead.extend(links_in(&without_code(&line.text)).filter(|link| !link_resolves(&source.path, link, tracked)));
        }
        breaches.extend(dead.into_iter().map(|path| source.breach(line.number, "refer to what exists", path)));
    }
    breaches
}

/// Returns the paths in a line that start with a folder of the repository. A pattern or a placeholder is no path.
fn paths_in(text: &str) -> impl Iterator<Item = &str> {
    let in_path = |c: char| c.is_alphanumeric() || "_-./".contains(c);
    text.split(move |c: char| !in_path(c) && !"*{<$…#".contains(c)).filter_map(move |piece| {
        let path = piece.split('#').next().unwrap_or("").trim_end_matches(['.', '/']);
        let placeholder = PLACEHOLDERS.iter().any(|word| path.contains(word));
        let starts = FOLDERS.iter().any(|folder| path.starts_with(folder));
        (starts && path.chars().all(in_path) && !placeholder).then_some(path)
    })
}

/// True if a file or folder exists, seen from the root or from the crate that `from` belongs to.
fn resolves(from: &str, path: &str, tracked: &BTreeSet<String>) -> bool {
    let home = crate_of(from).map(|name| format!("crates/{name}/{path}"));
    exists(path, tracked) || home.is_some_and(|path| exists(&path, tracked))
}

fn exists(path: &str, tracked: &BTreeSet<String>) -> bool {
    let folder = format!("{path}/");
    path.is_empty()
        || GENERATED.contains(&path)
        || tracked.contains(path)
        || tracked.range(folder.clone()..).next().is_some_and(|next| next.starts_with(&folder))
}

/// Returns the targets of markdown links in a line that are neither addresses nor headings of the same file.
fn links_in(text: &str) -> impl Iterator<Item = String> {
    let target = |piece: &str| piece.split(')').next().unwrap_or("").split('#').next().unwrap_or("").to_owned();
    let links: Vec<String> = text.split("](").skip(1).map(target).collect();
    links.into_iter().filter(|link| !link.is_empty() && !link.contains(':'))
}

fn link_resolves(from: &str, link: &str, tracked: &BTreeSet<String>) -> bool {
    let mut parts: Vec<&str> = from.split('/').collect();
    parts.pop();
    for part in link.split('/') {
        match part {
            "" | "." => {}
            ".." if parts.pop().is_none() => return false,
            ".." => {}
            part => parts.push(part),
        }
    }
    exists(&parts.join("/"), tracked)
}

fn crate_of(path: &str) -> Option<&str> {
    path.strip_prefix("crates/")?.split('/').next()
}

/// A public type has a name of its own in its crate.
fn same_names(sources: &[Source]) -> Vec<Breach> {
    let mut seen = BTreeMap::<(&str, &str), String>::new();
    let mut breaches = Vec::new();
    for source in sources.iter().filter(|source| source.path.contains("/src/")) {
        let Some(home) = crate_of(&source.path) else { continue };
        for (number, name) in public_types(&source.code) {
            if SAME_NAME.contains(&(home, name)) {
                continue;
            }
            let here = format!("{}:{number}", source.path);
            if let Some(first) = seen.insert((home, name), here) {
                breaches.push(source.breach(
                    number,
                    "give each public type its own name",
                    format!("{name}, as {first}"),
                ));
            }
        }
    }
    breaches
}

/// Returns the public types that code declares, with their lines.
fn public_types(code: &str) -> impl Iterator<Item = (usize, &str)> {
    (1..).zip(code.lines()).filter_map(|(number, line)| {
        let rest = line.trim_start().strip_prefix("pub ")?;
        let rest = rest.strip_prefix("unsafe ").unwrap_or(rest);
        let kinds = ["struct ", "enum ", "trait ", "type ", "union "];
        let name = kinds.iter().find_map(|kind| rest.strip_prefix(kind))?;
        words(name).next().map(|name| (number, name))
    })
}

/// The head of a module with submodules stands beside their folder.
fn module_heads(sources: &[Source]) -> Vec<Breach> {
    let is_head = |source: &&Source| source.path.contains("/src/") && source.path.ends_with("/mod.rs");
    sources.iter().filter(is_head).map(|source| source.breach(1, "name the file after the module", "mod.rs")).collect()
}

/// No module of a crate depends on itself by way of others.
fn circles(sources: &[Source]) -> Vec<Breach> {
    let mut crates = BTreeMap::<&str, Vec<(&str, &Source)>>::new();
    for source in sources {
        if let Some((home, path)) = source.path.strip_prefix("crates/").and_then(|path| path.split_once("/src/")) {
            crates.entry(home).or_default().push((path, source));
        }
    }
    let mut breaches = Vec::new();
    for (home, files) in crates {
        let arrows = arrows::Arrows::new(files.iter().map(|(path, source)| (*path, source.code.as_str())));
        for circle in arrows.circles() {
            let name = |module: &arrows::Module| if module.is_empty() { "lib".to_owned() } else { module.join("::") };
            let names: Vec<String> = circle.iter().chain(circle.first()).map(name).collect();
            let path = format!("crates/{home}/src");
            breaches.push(Breach { path, line: 1, rule: "point downwards only", found: names.join(" -> ") });
        }
    }
    breaches
}

/// Every Rust file is a root that cargo finds, or a module that another file declares.
fn dead_files(sources: &[Source]) -> Vec<Breach> {
    let mut declared = BTreeSet::new();
    for source in sources.iter().filter(|source| !source.code.is_empty()) {
        declared.extend(modules_of(source));
    }
    let dead = |source: &&Source| !source.code.is_empty() && !is_root(&source.path) && !declared.contains(&source.path);
    sources.iter().filter(dead).map(|source| source.breach(1, "declare the module", "no file does")).collect()
}

/// True for files that cargo finds by their place.
fn is_root(path: &str) -> bool {
    let parts: Vec<&str> = path.split('/').collect();
    matches!(
        parts[..],
        [.., "src", "lib.rs" | "main.rs"]
            | [.., "build.rs"]
            | [.., "src", "bin", _]
            | [.., "tests" | "examples" | "benches" | "fuzz_targets", _]
            | [.., "bin" | "tests" | "examples" | "benches", _, "main.rs"]
    )
}

/// Returns the files that the module declarations of a file may mean.
fn modules_of(source: &Source) -> Vec<String> {
    let (folder, name) = source.path.rsplit_once('/').unwrap_or(("", &source.path));
    let stem = name.trim_end_matches(".rs");
    let is_folder_s = is_root(&source.path) || stem == "mod";
    let below = if is_folder_s { folder.to_owned() } else { format!("{folder}/{stem}") };
    let mut files = Vec::new();
    for (code, text) in source.code.lines().zip(source.text.lines()) {
        let file = text.trim_start().strip_prefix("#[path = \"").and_then(|rest| rest.split('"').next());
        if let Some(file) = file {
            files.push(normal(&format!("{folder}/{file}")));
        }
        let module = code.trim().strip_suffix(';').and_then(|code| code.split_once("mod "));
        if let Some((before, module)) = module
            && !ends_in_word(before)
        {
            files.extend([format!("{below}/{module}.rs"), format!("{below}/{module}/mod.rs")]);
        }
    }
    files
}

/// Resolves `..` in a path.
fn normal(path: &str) -> String {
    let mut parts = Vec::new();
    for part in path.split('/') {
        match part {
            ".." => drop(parts.pop()),
            "." => {}
            part => parts.push(part),
        }
    }
    parts.join("/")
}

/// Checks all rules on a set of files, of which `tracked` are the names.
fn breaches(sources: &[Source], tracked: &BTreeSet<String>) -> Vec<Breach> {
    let rules = [vague_actors, question_openers, leftover_markers, long_comments, outside_names];
    let each = sources.iter().flat_map(|source| rules.iter().flat_map(move |rule| rule(source)));
    let mut breaches: Vec<Breach> = each.collect();
    breaches.extend(sources.iter().flat_map(|source| dead_references(source, tracked)));
    breaches.extend(same_names(sources));
    breaches.extend(dead_files(sources));
    breaches.extend(module_heads(sources));
    breaches.extend(circles(sources));
    breaches.sort();
    breaches
}

/// Returns the names of all tracked files; `None` without git or outside a checkout.
fn tracked(root: &Path) -> Option<BTreeSet<String>> {
    let listed = Command::new("git").arg("-C").arg(root).args(["ls-files", "-z"]).output().ok()?;
    let names = String::from_utf8(listed.stdout).ok()?;
    let names = names.split('\0').filter(|name| root.join(name).is_file());
    listed.status.success().then(|| names.map(str::to_owned).collect())
}

#[test]
fn the_repository_keeps_its_conventions() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let Some(tracked) = tracked(&root).filter(|tracked| !tracked.is_empty()) else {
        return println!("SKIPPED: conventions are checked in a git checkout only");
    };
    let checked = tracked.iter().filter(|path| path.ends_with(".rs") || path.ends_with(".md"));
    let read = |path: &String| Source::new(path, &std::fs::read_to_string(root.join(path)).expect("a readable file"));
    let sources: Vec<Source> = checked.map(read).collect();
    assert!(sources.len() > 100, "{} files are checked", sources.len());
    let breaches = breaches(&sources, &tracked);
    breaches.iter().take(BREACHES_MAX).for_each(|breach| println!("{breach}"));
    assert!(breaches.is_empty(), "{} breaches, printed above", breaches.len());
}

/// Returns the breaches of a rule in one file, as [`shown`].
fn planted(rule: fn(&Source) -> Vec<Breach>, path: &str, text: &str) -> Vec<String> {
    shown(rule(&Source::new(path, text)))
}

/// Formats breaches as `FILE:LINE: found`.
fn shown(breaches: Vec<Breach>) -> Vec<String> {
    breaches.into_iter().map(|breach| format!("{}:{}: {}", breach.path, breach.line, breach.found)).collect()
}

#[test]
fn comments_and_code_are_told_apart() {
    let text = "let a = \"// no /* \\\" comment\"; // yes\nlet b = r#\"\"/*\"#; /* one\ntwo */ 'x' 'a: '\\'' b'\"'\n/// doc\n/// more\n//! other\n";
    let source = Source::new("a.rs", text);
    let lines: Vec<(usize, &str, bool)> =
        source.lines.iter().map(|line| (line.number, line.text.as_str(), line.opens)).collect();
    let expected = [
        (1, " yes", true),
        (2, " one", true),
        (3, "two */", false),
        (4, " doc", true),
        (5, " more", false),
        (6, " other", true),
    ];
    assert_eq!(lines, expected);
    assert_eq!(source.code.split_whitespace().collect::<Vec<_>>(), ["let", "a", "=", ";", "let", "b", "=", ";", "'a:"]);
    assert_eq!(source.code.lines().count(), 6);
}

#[test]
fn a_vague_actor_is_found() {
    let text = "/// Waits until nobody\n/// reads `nobody`.\nlet nobody = \"somebody\"; // Whoever\n";
    assert_eq!(planted(vague_actors, "a.rs", text), ["a.rs:1: nobody", "a.rs:3: Whoever"]);
    assert_eq!(planted(vague_actors, "a.md", "One.\nSomebody.\n```\nnobody\n```\n"), ["a.md:2: Somebody"]);
}

#[test]
fn a_question_word_that_opens_a_comment_is_found() {
    let text = "/// What it is.\n/// When it ends.\n\n// Ends\n// When done.\nx(); // Why not\n";
    assert_eq!(planted(question_openers, "a.rs", text), ["a.rs:1: What", "a.rs:6: Why"]);
}

#[test]
fn unfinished_work_is_found() {
    let text = "// TODO: more\nfn f() { dbg!(1); my_todo!(); \"todo!\"; unimplemented!() }\n";
    assert_eq!(planted(leftover_markers, "a.rs", text), ["a.rs:1: TODO", "a.rs:2: dbg!", "a.rs:2: unimplemented!"]);
    assert_eq!(planted(leftover_markers, "a.md", "A wip.\n"), ["a.md:1: wip"]);
}

#[test]
fn a_long_comment_is_found() {
    let long = format!("//! a {}\n//! | {}\nlet a = \"{}\";\n", "ä".repeat(115), "b ".repeat(80), "c ".repeat(80));
    assert_eq!(planted(long_comments, "a.rs", &long), ["a.rs:1: 121 columns"]);
}

#[test]
fn a_name_outside_the_repository_is_found() {
    let text = "// as seams.md says\n// my_spec/ and tests/spec/a\nlet a = \"seams.md\";\n// `../shared/x`\n";
    assert_eq!(planted(outside_names, "a.rs", text), ["a.rs:1: seams.md", "a.rs:4: ../shared"]);
}

#[test]
fn a_reference_to_nothing_is_found() {
    let tracked: BTreeSet<String> =
        ["docs/a.md", "crates/x/tests/t.rs", "crates/x/src/lib.rs", "README.md"].map(str::to_owned).into();
    let of = |path: &str, text: &str| shown(dead_references(&Source::new(path, text), &tracked));
    let comment = "// docs/a.md, `docs/b.md`; tests/t.rs, tests/*.sh, https://x.org/docs/c.md, lab-runs/DATE.\n";
    assert_eq!(of("crates/x/src/lib.rs", comment), ["crates/x/src/lib.rs:1: docs/b.md"]);
    let links =
        "[a](a.md#part) [up](../README.md)\n[b](b.md) [out](https://x.org) [in](#here) `[c](c.md)` [far](../../d)\n";
    assert_eq!(of("docs/a.md", links), ["docs/a.md:2: b.md", "docs/a.md:2: ../../d"]);
}

#[test]
fn a_second_public_type_of_one_name_is_found() {
    let file = |path: &str, text: &str| Source::new(path, text);
    let sources = [
        file("crates/x/src/a.rs", "pub struct Plan<T>;\nstruct Own;\n// pub enum Own {}\n"),
        file("crates/x/src/b.rs", "pub enum Own {}\n    pub type Plan = u8;\n"),
        file("crates/y/src/a.rs", "pub trait Plan {}\n"),
    ];
    assert_eq!(shown(same_names(&sources)), ["crates/x/src/b.rs:2: Plan, as crates/x/src/a.rs:1"]);
}

#[test]
fn a_file_that_no_module_declares_is_found() {
    let file = |path: &str, text: &str| Source::new(path, text);
    let sources = [
        file("crates/x/src/lib.rs", "mod a;\npub(crate) mod b;\n// mod d;\n"),
        file("crates/x/src/a.rs", "mod deep;\n#[path = \"../other.rs\"]\nmod o;\n"),
        file("crates/x/src/a/deep.rs", "fn f() {}\n"),
        file("crates/x/src/b/mod.rs", "mod c;\n"),
        file("crates/x/src/b/c.rs", "fn f() {}\n"),
        file("crates/x/src/d.rs", "fn f() {}\n"),
        file("crates/x/other.rs", "fn f() {}\n"),
        file("crates/x/tests/t.rs", "fn f() {}\n"),
    ];
    assert_eq!(shown(dead_files(&sources)), ["crates/x/src/d.rs:1: no file does"]);
}

#[test]
fn a_circle_of_modules_is_found() {
    let file = |path: &str, text: &str| Source::new(path, text);
    let sources = [
        file("crates/x/src/lib.rs", "mod a;\nmod b;\npub mod c;\npub use a::A;\nfn f() { c::f() }\n"),
        file("crates/x/src/a.rs", "use crate::{b::{self, B as Other}, c};\npub struct A;\n"),
        file("crates/x/src/b.rs", "fn f(_: crate::A) {}\n#[cfg(test)]\nmod tests { use crate::c::f; }\n"),
        file("crates/x/src/c/mod.rs", "mod deep;\npub use deep::f;\nfn g() {}\n"),
        file("crates/x/src/c/deep.rs", "// use crate::c::g;\npub fn f() {}\n"),
        file("crates/y/src/lib.rs", "mod a;\nfn g() { a::f() }\n"),
        file("crates/y/src/a.rs", "pub fn f() { super::g() }\n"),
        file("crates/z/src/a.rs", "use crate::b;\n"),
        file("crates/z/src/b.rs", "pub(in crate::a) fn f() {}\n"),
    ];
    assert_eq!(shown(circles(&sources)), ["crates/x/src:1: a -> b -> a", "crates/y/src:1: lib -> a -> lib"]);
}

#[test]
fn a_head_inside_its_folder_is_found() {
    let sources = ["crates/x/src/a/mod.rs", "crates/x/src/b.rs", "crates/x/tests/common/mod.rs"];
    let sources = sources.map(|path| Source::new(path, "fn f() {}\n"));
    assert_eq!(shown(module_heads(&sources)), ["crates/x/src/a/mod.rs:1: mod.rs"]);
}
