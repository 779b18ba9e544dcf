//! [`Found`]: the result of a look at a whole volume.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// The result of a look at a whole volume: the fields of JSON, and text for people.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Found {
    pub(super) fields: Map<String, Value>,
    pub(super) text: String,
}
