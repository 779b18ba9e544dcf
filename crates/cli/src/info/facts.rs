//! The facts that `moafs info` shows.

use std::path::Path;

use serde::Serialize;

/// The facts that only one format has.
pub(super) trait Facts: Serialize {
    /// Returns the facts as text for people.
    fn text(&self, image: &Path) -> String;
}
