//! [`Trail`]: the way by which a file was found.
//!
//! Trails share their beginnings, so that a tree of any depth costs one name per file; nothing about them is recursive.

use std::fmt;
use std::rc::Rc;

use crate::output;

/// Bytes of a path that messages show; the part before them is shown as `…`.
const SHOWN_BYTES_MAX: usize = 4096;

/// The way by which a file was found: a path, and the names that followed.
#[derive(Debug, Clone)]
pub(crate) struct Trail(Rc<Step>);

#[derive(Debug)]
struct Step {
    before: Option<Trail>,
    name: Vec<u8>,
}

impl Drop for Step {
    fn drop(&mut self) {
        // The steps are dropped one by one: a drop that went from step to step by itself would need
        // a stack as deep as the tree.
        let mut next = self.before.take();
        while let Some(Trail(step)) = next {
            next = Rc::into_inner(step).and_then(|mut step| step.before.take());
        }
    }
}

impl Trail {
    /// Begins with a path.
    pub(crate) fn new(path: &[u8]) -> Trail {
        Trail(Rc::new(Step { before: None, name: path.to_vec() }))
    }

    /// Returns the trail continued by a name.
    pub(crate) fn join(&self, name: &[u8]) -> Trail {
        Trail(Rc::new(Step { before: Some(self.clone()), name: name.to_vec() }))
    }

    /// Returns the trail without its last name; `None` at the path that it begins with.
    pub(crate) fn before(&self) -> Option<Trail> {
        self.0.before.clone()
    }

    /// Returns the names that lead here from `top`, which is on the way.
    pub(crate) fn names_from(&self, top: &Trail) -> Vec<&[u8]> {
        let mut names = Vec::new();
        let mut at = self;
        while !Rc::ptr_eq(&at.0, &top.0) {
            names.push(at.0.name.as_slice());
            let Some(before) = &at.0.before else { break };
            at = before;
        }
        names.reverse();
        names
    }

    /// Returns the path in bytes, cut at its beginning if it is very long.
    fn bytes(&self) -> Vec<u8> {
        let mut parts: Vec<&[u8]> = Vec::new();
        let mut len = 0;
        let mut at = Some(self);
        while let Some(Trail(step)) = at {
            if len > SHOWN_BYTES_MAX {
                parts.push("…".as_bytes());
                break;
            }
            parts.push(&step.name);
            len += step.name.len() + 1;
            at = step.before.as_ref();
        }
        parts.reverse();
        let mut path = Vec::with_capacity(len);
        for part in parts {
            if !path.is_empty() && !path.ends_with(b"/") {
                path.push(b'/');
            }
            path.extend_from_slice(part);
        }
        path
    }
}

impl fmt::Display for Trail {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&output::name(&self.bytes()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trail_is_shown_as_a_path_and_tells_the_names_since_its_top() {
        let top = Trail::new(b"/");
        let file = top.join(b"a\n").join(b"b");
        assert_eq!(file.to_string(), "/a\\n/b");
        assert_eq!(file.names_from(&top), [&b"a\n"[..], b"b"]);
        assert_eq!(file.before().unwrap().to_string(), "/a\\n");
        assert!(top.before().is_none() && top.names_from(&top).is_empty());
    }

    #[test]
    fn a_trail_of_a_million_names_is_dropped_and_shown_on_a_small_stack() {
        let work = || {
            let mut trail = Trail::new(b".");
            (0..1_000_000).for_each(|_| trail = trail.join(b"d"));
            let shown = trail.to_string();
            assert!(shown.starts_with("…/d/") && shown.len() < 2 * SHOWN_BYTES_MAX, "{}", shown.len());
        };
        std::thread::Builder::new().stack_size(128 << 10).spawn(work).unwrap().join().unwrap();
    }
}
