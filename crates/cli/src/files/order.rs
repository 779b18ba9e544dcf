//! [`Order`]: the order in which `ls` lists.

use std::cmp::Reverse;

use clap::Args;

use super::tree::Meta;

/// The options of order; without one it is that of names, byte by byte.
#[derive(Debug, Args)]
pub(super) struct Order {
    /// The newest first, by the time of the last change
    #[arg(short = 't', overrides_with = "by_size")]
    by_time: bool,
    /// The largest first
    #[arg(short = 'S', overrides_with = "by_time")]
    by_size: bool,
    /// The other way round
    #[arg(short, long)]
    reverse: bool,
}

impl Order {
    /// Puts items in order. Those without attributes come last, and those that are equal by their names.
    pub(super) fn arrange<T>(
        &self,
        mut items: Vec<T>,
        name: impl Fn(&T) -> &[u8],
        meta: impl Fn(&T) -> Option<Meta>,
    ) -> Vec<T> {
        items.sort_by(|one, other| name(one).cmp(name(other)));
        if self.by_time {
            items.sort_by_cached_key(|item| Reverse(meta(item).map(|meta| (meta.mtime.secs, meta.mtime.nanos))));
        } else if self.by_size {
            items.sort_by_cached_key(|item| Reverse(meta(item).map(|meta| meta.size)));
        }
        if self.reverse {
            items.reverse();
        }
        items
    }
}
