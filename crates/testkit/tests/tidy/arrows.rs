//! The arrows between the modules of a crate, as the paths in their code draw them, and the circles among them.
//!
//! A module points to another if a path in its code (`use`, or in an expression) leads to an item of that one. A path
//! through a `pub use` leads to the module that has the item, so the re-exports of a facade are no arrows, and neither
//! are module declarations and visibilities. Code of unit tests is left out.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Range;

/// A module by its path in the crate; empty for the root.
pub(crate) type Module = Vec<String>;

/// The modules of one crate.
pub(crate) struct Arrows {
    /// Code of each module, without that of unit tests.
    code: BTreeMap<Module, String>,
    /// For each module the names that it exports from elsewhere, and their paths from the root.
    exports: BTreeMap<Module, BTreeMap<String, Module>>,
}

impl Arrows {
    /// Takes the files below `src/`: their paths from there, and their code without comments and literals.
    pub(crate) fn new<'a>(files: impl Iterator<Item = (&'a str, &'a str)>) -> Arrows {
        let mut code = BTreeMap::<Module, String>::new();
        for (path, text) in files {
            let module = module_of(path);
            if module.last().is_none_or(|name| name != "tests") {
                code.entry(module).or_default().push_str(&without_tests(text));
            }
        }
        let mut arrows = Arrows { code, exports: BTreeMap::new() };
        for module in arrows.code.keys() {
            let code = &arrows.code[module];
            let uses = uses(code).into_iter().filter(|(is_public, _)| *is_public);
            let paths = uses.flat_map(|(_, tree)| expand(&code[tree]));
            let paths = paths.filter_map(|(path, name)| Some((name, arrows.below_root(module, &path)?)));
            arrows.exports.insert(module.clone(), paths.collect());
        }
        arrows
    }

    /// Returns the modules to which the code of `module` points.
    fn targets(&self, module: &Module) -> BTreeSet<Module> {
        let code = &self.code[module];
        let own = uses(code).into_iter().filter(|(is_public, _)| !*is_public);
        let mut paths: Vec<Module> = own.flat_map(|(_, tree)| expand(&code[tree])).map(|(path, _)| path).collect();
        paths.extend(inline_paths(code));
        let targets = paths.iter().filter_map(|path| self.below_root(module, path)).map(|path| self.owner(&path, 0));
        targets.filter(|target| target != module).collect()
    }

    /// Returns a path as seen from the crate's root; `None` if it leads to another crate or to a name of the module
    /// itself.
    fn below_root(&self, module: &Module, path: &[String]) -> Option<Module> {
        let (first, mut rest) = path.split_first()?;
        let mut at = module.clone();
        match first.as_str() {
            "crate" => at.clear(),
            "self" => {}
            "super" => {
                at.pop();
            }
            name => {
                at.push(name.to_owned());
                if !self.code.contains_key(&at) {
                    return None;
                }
            }
        }
        while rest.first().is_some_and(|name| name == "super") {
            at.pop();
            rest = &rest[1..];
        }
        at.extend_from_slice(rest);
        Some(at)
    }

    /// Returns the module that has the item at a path from the root.
    fn owner(&self, path: &[String], depth: usize) -> Module {
        let known = (0..=path.len()).rev().find(|len| self.code.contains_key(&path[..*len])).unwrap_or(0);
        let (module, item) = path.split_at(known);
        let exported = item.first().and_then(|name| self.exports.get(module)?.get(name));
        match exported {
            Some(path) if depth < 8 => self.owner(&[path, &item[1..]].concat(), depth + 1),
            _ => module.to_vec(),
        }
    }

    /// Returns the shortest circle through each module that is on one, each circle once.
    pub(crate) fn circles(&self) -> Vec<Vec<Module>> {
        let arrows = self.code.keys().map(|module| (module.clone(), self.targets(module))).collect();
        let mut seen = BTreeSet::new();
        let mut circles = Vec::new();
        for start in self.code.keys() {
            let Some(circle) = circle_through(start, &arrows) else { continue };
            if circle.iter().all(|module| !seen.contains(module)) {
                seen.extend(circle.iter().cloned());
                circles.push(circle);
            }
        }
        circles
    }
}

/// Returns the shortest circle through `start`, which it begins with.
fn circle_through(start: &Module, arrows: &BTreeMap<Module, BTreeSet<Module>>) -> Option<Vec<Module>> {
    let mut from = BTreeMap::<&Module, &Module>::new();
    let mut queue = VecDeque::from([start]);
    while let Some(at) = queue.pop_front() {
        for next in arrows.get(at)? {
            if next == start {
                let mut circle = vec![at.clone()];
                while let Some(before) = from.get(circle.last()?) {
                    circle.push((*before).clone());
                }
                circle.reverse();
                return Some(circle);
            }
            if !from.contains_key(next) {
                from.insert(next, at);
                queue.push_back(next);
            }
        }
    }
    None
}

fn module_of(path: &str) -> Module {
    let mut parts: Module = path.trim_end_matches(".rs").split('/').map(str::to_owned).collect();
    if parts.last().is_some_and(|name| ["lib", "main", "mod"].contains(&name.as_str())) {
        parts.pop();
    }
    parts
}

/// Returns code without the items that only tests are built with.
fn without_tests(code: &str) -> String {
    let mut kept = String::with_capacity(code.len());
    let mut rest = code;
    while let Some((before, item)) = rest.split_once("#[cfg(test)]") {
        kept.push_str(before);
        let mut depth = 0;
        let end = item.find(|c| {
            depth += i32::from(c == '{') - i32::from(c == '}');
            depth == 0 && (c == '}' || c == ';')
        });
        rest = end.map_or("", |end| &item[end + 1..]);
    }
    kept + rest
}

/// Returns where the trees of the `use` items are, and whether each exports.
fn uses(code: &str) -> Vec<(bool, Range<usize>)> {
    let mut found = Vec::new();
    for (at, word) in code.match_indices("use ") {
        let before = code[..at].rsplit(['\n', ';', '{', '}']).next().unwrap_or("").trim();
        let is_item = before.is_empty() || before.starts_with("pub");
        let start = at + word.len();
        if let (true, Some(len)) = (is_item, code[start..].find(';')) {
            found.push((!before.is_empty(), start..start + len));
        }
    }
    found
}

/// Returns the paths of a tree of a `use` item, each with the name that it gets.
fn expand(tree: &str) -> Vec<(Module, String)> {
    let tree = tree.trim();
    let Some((head, inner)) = tree.split_once('{') else {
        let (path, name) = tree.split_once(" as ").unwrap_or((tree, ""));
        let path: Module =
            path.split("::").map(|name| name.trim().to_owned()).filter(|name| !name.is_empty()).collect();
        let last = path.last().cloned().unwrap_or_default();
        return vec![(path, if name.is_empty() { last } else { name.trim().to_owned() })];
    };
    let head: Module = head.split("::").map(|name| name.trim().to_owned()).filter(|name| !name.is_empty()).collect();
    let inner = inner.trim_end().strip_suffix('}').unwrap_or(inner);
    let mut depth = 0;
    let parts = inner.split(|c| {
        depth += i32::from(c == '{') - i32::from(c == '}');
        c == ',' && depth == 0
    });
    let below = parts.filter(|part| !part.trim().is_empty()).flat_map(expand);
    below.map(|(path, name)| ([head.clone(), path].concat(), name)).collect()
}

/// Returns the paths of two and more names that stand in code outside of `use` items.
fn inline_paths(code: &str) -> Vec<Module> {
    let mut paths = Vec::new();
    let mut start = 0;
    for (_, tree) in uses(code) {
        add_paths(&code[start..tree.start], &mut paths);
        start = tree.end;
    }
    add_paths(&code[start..], &mut paths);
    paths
}

fn add_paths(code: &str, paths: &mut Vec<Module>) {
    let in_path = |c: char| c.is_alphanumeric() || c == '_' || c == ':';
    let mut before = ' ';
    for word in code.split_inclusive(|c| !in_path(c)) {
        let path = word.trim_end_matches(|c| !in_path(c));
        if path.contains("::") && !path.starts_with("::") && before != '.' {
            let names = path.split("::").take_while(|name| !name.is_empty());
            paths.push(names.map(|name| name.trim_matches(':').to_owned()).collect());
        }
        // The path of a visibility, `pub(in path)`, is passed over as that of a field is.
        before = if before == '(' && word == "in " { '.' } else { word.chars().next_back().unwrap_or(' ') };
    }
}
