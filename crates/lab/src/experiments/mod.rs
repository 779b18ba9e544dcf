//! The experiments of the papers.
//!
//! | module | which |
//! |---|---|
//! | [`cowriting`] | CW-FFS: `cw-…` |
//! | [`recycling`] | U-LFS: `lfs-…` |
//! | [`file_aware`] | file-aware cleaning: `fac-…` |
//! | [`swapping`] | SAF: `saf-…` |
//! | `rows`, `notes` | measured totals as rows of a table; why ours differs, in words, from the counters |

pub(crate) mod cowriting;
pub(crate) mod file_aware;
mod notes;
pub(crate) mod recycling;
mod rows;
pub(crate) mod swapping;

use crate::experiment::Experiment;

/// All experiments, in the order of the papers.
pub(crate) fn all() -> impl Iterator<Item = &'static Experiment> {
    cowriting::ALL.iter().chain(&recycling::ALL).chain(&file_aware::ALL).chain(&swapping::ALL)
}
