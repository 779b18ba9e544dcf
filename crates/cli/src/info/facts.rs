//! The facts that `moafs info` shows.

use std::path::Path;

use moafs_vfs::Format;
use serde::Serialize;

use super::found::Found;

/// The facts that only one format has, from the first blocks of a volume.
pub(super) trait Facts: Serialize {
    /// Returns the facts as text for people.
    fn text(&self, image: &Path) -> String;
}

/// An open volume that tells of its groups or segments.
pub(crate) trait Tables: Format {
    /// Returns what is to be shown of them; `table` asks for each in the text as well.
    fn tables(&self, table: bool) -> Found;
}
