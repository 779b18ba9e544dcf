//! [`Destination`]: the last argument of `cp`, `mv` and `ln`.

use std::collections::HashSet;

use moafs_vfs::types::FileKind;

use super::tree::{LastLink, Tree};
use crate::error::{CliError, Result};
use crate::output;

/// The place that sources go to: into a directory, or to a name that is no directory or does not exist.
pub(crate) struct Destination<'a> {
    path: &'a [u8],
    /// A symbolic link to a directory is a directory if it is followed.
    last: LastLink,
    /// True if it must be a directory that exists: there are several sources.
    is_directory: bool,
    /// The fate of a source in one word, for messages: `copied`.
    done: &'static str,
    /// Names in that directory that were taken: a second source of the same name does not replace the first.
    taken: HashSet<Vec<u8>>,
}

impl<'a> Destination<'a> {
    /// Makes the destination of a number of sources.
    pub(crate) fn new(path: &'a [u8], sources: usize, done: &'static str) -> Self {
        Destination { path, last: LastLink::Followed, is_directory: sources > 1, done, taken: HashSet::new() }
    }

    /// Takes a symbolic link for a name, even if it leads to a directory.
    pub(crate) fn keep_link(&mut self) {
        self.last = LastLink::Kept;
    }

    /// Returns true if sources would go into a directory.
    pub(crate) fn is_existing_directory<D: Tree>(&self, to: &D) -> Result<bool> {
        let existing = to.resolve(self.path, self.last)?;
        Ok(existing.map(|node| to.meta(&node)).transpose()?.is_some_and(|meta| meta.kind == FileKind::Directory))
    }

    /// Returns true if the path ends in a slash, and there is nothing.
    pub(crate) fn is_new_directory<D: Tree>(&self, to: &D) -> Result<bool> {
        Ok(self.path.ends_with(b"/") && to.resolve(self.path, LastLink::Followed)?.is_none())
    }

    /// Returns the directory and the name that a source goes to; no name if the source's path has none (`/`, `..`).
    pub(crate) fn of<D: Tree>(&mut self, to: &D, source: &[u8]) -> Result<(D::Node, Option<Vec<u8>>)> {
        let (dir, name) = match to.resolve(self.path, self.last)? {
            Some(existing) if to.meta(&existing)?.kind == FileKind::Directory => {
                (existing, last_name(source).map(<[u8]>::to_vec))
            }
            _ => {
                let (dir, name) = self.new_file(to)?;
                (dir, Some(name))
            }
        };
        if let Some(name) = &name
            && self.is_directory
            && !self.taken.insert(name.clone())
        {
            let (source, done) = (output::name(source), self.done);
            let again = format!("{source}: another source of this name was just {done} and is not replaced");
            return Err(CliError::Usage(again));
        }
        Ok((dir, name))
    }

    /// Returns the directory and the name of a destination that is no directory, or does not exist.
    fn new_file<D: Tree>(&self, to: &D) -> Result<(D::Node, Vec<u8>)> {
        let shown = to.shown(self.path);
        if self.is_directory {
            return Err(CliError::Usage(format!("{shown} is no directory: several files cannot go there")));
        }
        let (parent, name) = parent_and_name(self.path);
        let missing = || CliError::Usage(format!("the directory of {shown} does not exist"));
        let name = name.ok_or_else(missing)?;
        let dir = to.resolve(parent, LastLink::Followed)?.ok_or_else(missing)?;
        Ok((dir, name.to_vec()))
    }
}

/// Returns the last component of a path; `None` for `/`, `.`, `..` and the like.
fn last_name(path: &[u8]) -> Option<&[u8]> {
    let (_, name) = parent_and_name(path);
    name.filter(|name| !matches!(*name, b"." | b".."))
}

/// Splits a path into its directory (`.` or `/` if it has none) and its last component.
fn parent_and_name(path: &[u8]) -> (&[u8], Option<&[u8]>) {
    let Some(last) = path.iter().rposition(|&byte| byte != b'/') else { return (path, None) };
    let path = &path[..=last];
    match path.iter().rposition(|&byte| byte == b'/') {
        Some(0) => (b"/", Some(&path[1..])),
        Some(slash) => (&path[..slash], Some(&path[slash + 1..])),
        None => (b".", Some(path)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_have_a_directory_and_a_name() {
        assert_eq!(parent_and_name(b"a/b/"), (&b"a"[..], Some(&b"b"[..])));
        assert_eq!(parent_and_name(b"/a"), (&b"/"[..], Some(&b"a"[..])));
        assert_eq!(parent_and_name(b"a"), (&b"."[..], Some(&b"a"[..])));
        assert_eq!(parent_and_name(b"/"), (&b"/"[..], None));
        assert_eq!(last_name(b"dir/.."), None);
    }
}
