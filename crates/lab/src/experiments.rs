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

use crate::error::{LabError, Result};
use crate::experiment::Experiment;

/// Returns all experiments, in the order of the papers.
pub fn all() -> Vec<&'static Experiment> {
    cowriting::ALL.iter().chain(&recycling::ALL).chain(&file_aware::ALL).chain(&swapping::ALL).collect()
}

/// Returns the experiments with these names, each once, in the order of [`all`]. Without names: all
/// experiments.
///
/// # Errors
/// [`LabError::Unknown`] lists what exists.
pub fn select(ids: &[String]) -> Result<Vec<&'static Experiment>> {
    let known = || all().into_iter().map(|experiment| experiment.id);
    for id in ids {
        if !known().any(|known| known == id) {
            return Err(LabError::unknown("experiment", id, known()));
        }
    }
    Ok(all().into_iter().filter(|e| ids.is_empty() || ids.iter().any(|id| id == e.id)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_experiments_list_those_that_exist() {
        let error = select(&["cw-seq-rite".to_owned()]).err().unwrap().to_string();
        assert!(error.contains("cw-seq-rite") && error.contains("cw-seq-write"), "{error}");
        assert_eq!(select(&[]).unwrap().len(), all().len());
        let twice = ["cw-postmark".to_owned(), "cw-seq-write".to_owned(), "cw-postmark".to_owned()];
        let ids: Vec<_> = select(&twice).unwrap().iter().map(|e| e.id).collect();
        assert_eq!(ids, ["cw-seq-write", "cw-postmark"]);
    }
}
