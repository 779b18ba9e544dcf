//! The daemon's side of `.moafs/layout`: it answers what `info` and `map` ask about a mounted volume.

use std::sync::Arc;

use moafs_mount::layout::LayoutMaker;
use moafs_vfs::{Error, Vfs};
use serde::Serialize;
use serde_json::Value;

use crate::info::{self, Tables};
use crate::map::{self, Picture};
use crate::question::Question;

/// Returns what answers questions about an open volume.
pub(crate) fn maker<F: Tables + Picture>(vfs: Vfs<F>) -> LayoutMaker {
    Arc::new(move |question, goes_on| answer(&vfs, question, goes_on))
}

fn answer<F: Tables + Picture>(
    vfs: &Vfs<F>,
    question: &Value,
    goes_on: &mut dyn FnMut() -> bool,
) -> Result<Value, String> {
    let question = serde_json::from_value(question.clone()).map_err(|error| error.to_string())?;
    match question {
        Question::Info(wanted) => told(info::found(vfs.format(), &wanted, |to| vfs.survey(to, goes_on))),
        Question::Map(wanted) => told(map::drawn(vfs.format(), &wanted, |to| vfs.survey(to, goes_on))),
    }
}

fn told(found: Result<impl Serialize, Error>) -> Result<Value, String> {
    let found = found.map_err(|error| error.to_string())?;
    serde_json::to_value(found).map_err(|error| error.to_string())
}
