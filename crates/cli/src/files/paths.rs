//! [`on_each`]: the one way in which commands go through the paths that they are given.
//!
//! Paths of one image that follow one another share one opening of the volume. A path that fails is told, the command
//! goes on with the next one, and ends with exit code 1.

use std::ffi::OsString;
use std::path::Path;
use std::process::ExitCode;

use clap::Args;
use moafs_vfs::Format;

use super::volume_tree::VolumeTree;
use crate::error::{CliError, Result};
use crate::output;
use crate::place::Inside;
use crate::stop::Stop;
use crate::volume::{Access, with_volume};

/// The paths that a command is given.
#[derive(Debug, Args)]
pub(crate) struct Paths {
    /// IMAGE:PATH, any number of them; or IMAGE, then paths on it
    #[arg(required = true, value_name = "IMAGE:PATH")]
    words: Vec<OsString>,
}

/// The work of a command on each path.
pub(crate) trait Work {
    /// The access that it needs.
    const ACCESS: Access;

    fn on<F: Format>(&mut self, tree: &VolumeTree<'_, F>, place: &Inside, going: &mut Going) -> Result<()>;
}

/// A command that goes on after failures, until it is interrupted.
pub(crate) struct Going {
    stop: Stop,
    has_failed: bool,
}

impl Going {
    pub(crate) fn new() -> Result<Going> {
        Ok(Going { stop: Stop::on_signals()?, has_failed: false })
    }

    /// Returns the signal that interrupts.
    pub(crate) fn stop(&self) -> &Stop {
        &self.stop
    }

    /// Tells of a failure.
    ///
    /// # Errors
    /// Fails if the command is to end: it was interrupted, or its output has no reader.
    pub(crate) fn after(&mut self, done: Result<()>) -> Result<()> {
        match done {
            Err(error @ (CliError::Interrupted | CliError::Output(_))) => return Err(error),
            Err(error) => {
                self.has_failed = true;
                output::complain(&error);
            }
            Ok(()) => {}
        }
        self.stop.check()
    }

    /// Returns the exit code.
    pub(crate) fn code(&self) -> ExitCode {
        if self.has_failed { ExitCode::FAILURE } else { ExitCode::SUCCESS }
    }
}

impl Paths {
    /// Does the work on each path.
    pub(crate) fn each(&self, work: &mut impl Work) -> Result<ExitCode> {
        on_each(Inside::parse_all(&self.words), work)
    }
}

/// Does the work on each place.
pub(crate) fn on_each<W: Work>(places: Vec<Result<Inside>>, work: &mut W) -> Result<ExitCode> {
    let mut going = Going::new()?;
    let mut known = Vec::new();
    for place in places {
        going.after(place.map(|place| known.push(place)))?;
    }
    for places in known.chunk_by(|one, next| one.image == next.image) {
        let done = open_and_do(&places[0].image, places, work, &mut going);
        going.after(done)?;
    }
    Ok(going.code())
}

fn open_and_do<W: Work>(image: &Path, places: &[Inside], work: &mut W, going: &mut Going) -> Result<()> {
    with_volume!(image, W::ACCESS, |volume| {
        let tree = VolumeTree::new(&volume.vfs, image);
        places.iter().try_for_each(|place| {
            let done = work.on(&tree, place, going);
            going.after(done)
        })
    })
}
