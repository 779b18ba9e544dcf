//! The state behind [`crate::Vfs`].

use crate::format::Format;

/// Everything a volume keeps in memory.
pub(crate) struct Inner<F: Format> {
    pub(crate) format: F,
}
