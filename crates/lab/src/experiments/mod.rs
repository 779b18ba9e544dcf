//! The experiments of the papers.
//!
//! | module | which |
//! |---|---|
//! | [`cowriting`] | CW-FFS: `cw-…` |
//! | `rows`, `notes` | measured totals as rows of a table; why ours differs, in words, from the counters |

pub(crate) mod cowriting;
mod notes;
mod rows;

use crate::experiment::Experiment;

/// All experiments, in the order of the papers.
pub(crate) const ALL: &[Experiment] = &cowriting::ALL;
