//! [`Sizes`]: how `du` and `df` show sizes.

use clap::{ArgAction, Args};

use crate::output;

/// The options of commands that show sizes, and of which `-h` is one.
#[derive(Debug, Args)]
pub(crate) struct Sizes {
    /// Sizes for people, with units
    #[arg(short = 'h', long)]
    pub(crate) human_readable: bool,
    /// Print the list as JSON
    #[arg(long)]
    pub(crate) json: bool,
    /// Print help
    #[arg(long, action = ArgAction::Help)]
    help: Option<bool>,
}

impl Sizes {
    /// Returns a size as a table shows it: KiB, if not for people.
    pub(crate) fn shown(&self, bytes: u64) -> String {
        if self.human_readable { output::size(bytes) } else { bytes.div_ceil(1024).to_string() }
    }
}
