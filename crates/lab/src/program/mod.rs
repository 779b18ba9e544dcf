//! Memory-intensive programs as the pages they touch: the order of their real loops, processor time per step, no contents.
//!
//! A loop's references are given in *steps*: between two steps the loop touches the same pages again and again, which changes
//! nothing as long as nobody looks at those pages for replacement. Processor times are stated figures of a 3 GHz Pentium D, not
//! measured ones.
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

/// Bytes of a number.
const DOUBLE: u64 = 8;
/// Bytes of a page.
const PAGE: u64 = moafs_swap::PAGE_BYTES as u64;

fn touch(process: &Process, page: u64, access: Access) -> Result<()> {
    process.touch(page as u32, access).map_err(|error| LabError::Swap(error.to_string()))
}
