//! [`Question`]: what `info` and `map` ask a mount's daemon about the layout.

use serde::{Deserialize, Serialize};

/// A question, and what the answer depends on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub(crate) enum Question {
    /// The part of `info` that takes a look at everything: groups or segments, files, free space.
    Info(InfoQuestion),
    /// The picture of `map`.
    Map(MapQuestion),
}

/// The question of `info`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct InfoQuestion {
    /// Show the table of groups, or of segments in use.
    pub(crate) table: bool,
    /// Number of the most scattered files to show.
    pub(crate) scattered: usize,
}

/// The question of `map`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct MapQuestion {
    pub(crate) title: String,
}
