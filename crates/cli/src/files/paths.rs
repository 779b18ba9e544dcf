//! [`on_each`] and [`look_at_each`]: the ways in which commands go through the paths that they are given.
//!
//! Paths of one image that follow one another share one opening of the volume. A path that fails is told, the command
//! goes on with the next one, and ends with exit code 1.

use std::ffi::OsString;
use std::path::Path;
use std::process::ExitCode;

use clap::Args;
use moafs_vfs::Format;

use super::host::Host;
use super::tree::Tree;
use super::volume_tree::VolumeTree;
use crate::error::{CliError, Result};
use crate::mounted;
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

/// The work of a command that only looks, on each path.
pub(crate) trait Look {
    fn at<T: Tree>(&mut self, tree: &T, place: &Inside, going: &mut Going) -> Result<()>;

    /// Returns the places of one image in the order in which they are looked at.
    fn ordered<'p, T: Tree>(&self, _tree: &T, places: &'p [Inside]) -> Vec<&'p Inside> {
        places.iter().collect()
    }
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
    /// Returns the places.
    pub(crate) fn places(&self) -> Vec<Result<Inside>> {
        Inside::parse_all(&self.words)
    }

    /// Does the work on each path.
    pub(crate) fn each(&self, work: &mut impl Work) -> Result<ExitCode> {
        on_each(self.places(), work)
    }
}

/// Does the work on each place.
pub(crate) fn on_each<W: Work>(places: Vec<Result<Inside>>, work: &mut W) -> Result<ExitCode> {
    by_image(places, |image, places, going| {
        with_volume!(image, W::ACCESS, |volume| {
            let tree = VolumeTree::new(&volume.vfs, image);
            places.iter().try_for_each(|place| {
                let done = work.on(&tree, place, going);
                going.after(done)
            })
        })
    })
}

/// Looks at each place. A volume that moafs has mounted is looked at through the mount.
pub(crate) fn look_at_each(places: Vec<Result<Inside>>, look: &mut impl Look) -> Result<ExitCode> {
    by_image(places, |image, places, going| {
        if let Some(mount_point) = mounted::mount_point(image) {
            return look_through(&Host::mounted(image, &mount_point)?, places, look, going);
        }
        with_volume!(image, Access::Read, |volume| look_through(
            &VolumeTree::new(&volume.vfs, image),
            places,
            look,
            going
        ))
    })
}

fn look_through<T: Tree>(tree: &T, places: &[Inside], look: &mut impl Look, going: &mut Going) -> Result<()> {
    look.ordered(tree, places).into_iter().try_for_each(|place| {
        let done = look.at(tree, place, going);
        going.after(done)
    })
}

/// Gives the places of each image in turn to `work`. One that is not understood is told, and passed by.
pub(super) fn by_image(
    places: Vec<Result<Inside>>,
    mut work: impl FnMut(&Path, &[Inside], &mut Going) -> Result<()>,
) -> Result<ExitCode> {
    let mut going = Going::new()?;
    let mut known = Vec::new();
    for place in places {
        going.after(place.map(|place| known.push(place)))?;
    }
    for places in known.chunk_by(|one, next| one.image == next.image) {
        let done = work(&places[0].image, places, &mut going);
        going.after(done)?;
    }
    Ok(going.code())
}
