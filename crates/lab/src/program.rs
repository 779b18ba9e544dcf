//! Memory-intensive programs as the pages they touch: the order of their real loops, processor time
//! per step, no contents.
//!
//! A loop's references are given in *steps*: between two steps the loop touches the same pages
//! again and again, which changes nothing as long as those pages are not looked at for replacement.
//! Processor times are stated figures of a 3 GHz Pentium D, not measured ones.
//!
//! | module | what it does |
//! |---|---|
//! | [`sor`] | Scimark2's SOR: sweeps over a matrix, row by row |
//! | [`lu`] | nbench's LU: a matrix is scrambled by rows and decomposed by columns |
//! | [`ns2`] | a stand-in for a network simulator: events at nodes drawn at random |
//! | [`compile`] | a stand-in for a kernel compile: files, and a compiler's memory for each |

pub mod compile;
pub mod lu;
pub mod ns2;
pub mod sor;

use crate::error::{LabError, Result};
use crate::memory::{Access, Process};

/// The environment of a loop: a process, or a test that records the pages it touches.
pub trait Touch {
    /// Accesses a page.
    ///
    /// # Errors
    /// Fails if the page cannot be brought in.
    fn touch(&self, page: u64, access: Access) -> Result<()>;
    /// Uses the processor for `ns` nanoseconds.
    fn compute(&self, ns: u64);
    /// Returns a counter of looks at pages for replacement. While it stays the same, touching the
    /// same pages again changes nothing.
    fn looks(&self) -> u64;
}

impl Touch for Process {
    fn touch(&self, page: u64, access: Access) -> Result<()> {
        Process::touch(self, page as u32, access).map_err(|error| LabError::Swap(error.to_string()))
    }

    fn compute(&self, ns: u64) {
        Process::compute(self, ns);
    }

    fn looks(&self) -> u64 {
        Process::looks(self)
    }
}

/// Bytes of a number.
const DOUBLE: u64 = 8;
/// Bytes of a page.
const PAGE: u64 = moafs_swap::PAGE_BYTES as u64;

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    /// An environment that records the pages a loop touches. It says that pages are looked at all
    /// the time, so that nothing is left out.
    #[derive(Default)]
    pub(super) struct Recorder {
        pub(super) touched: RefCell<Vec<(u64, Access)>>,
    }

    impl Touch for Recorder {
        fn touch(&self, page: u64, access: Access) -> Result<()> {
            self.touched.borrow_mut().push((page, access));
            Ok(())
        }

        fn compute(&self, _ns: u64) {}

        fn looks(&self) -> u64 {
            self.touched.borrow().len() as u64
        }
    }
}
