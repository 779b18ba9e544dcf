//! The experiments of the papers, whose titles `README.md` has. In a module *the paper* is the one of its row.
//!
//! | module | which |
//! |---|---|
//! | [`cowriting`] | CW-FFS (Lee, Ahn, Oh 2008): `cw-…` |
//! | [`recycling`] | U-LFS (Oh, Kim, Choi, Lee, Noh 2009): `lfs-…` |
//! | [`file_aware`] | file-aware cleaning (Park, Kang, Seo, Eom 2016): `fac-…` |
//! | [`swapping`] | SAF (Ahn, Kim, Kim, Oh 2011): `saf-…` |
//! | `rows`, `notes` | measured totals as rows of a table; why ours differs, in words, from the counters |

pub(crate) mod cowriting;
pub(crate) mod file_aware;
mod notes;
pub(crate) mod recycling;
mod rows;
pub(crate) mod swapping;

use crate::experiment::Experiment;

/// Returns all experiments, in the order of the papers.
pub(crate) fn all() -> impl Iterator<Item = &'static Experiment> {
    cowriting::ALL.iter().chain(&recycling::ALL).chain(&file_aware::ALL).chain(&swapping::ALL)
}
