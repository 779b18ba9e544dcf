//! The modelled drive: a model of `moafs_disk`, the parameters set on it, and the translation of
//! requests in the queue into device commands.

use moafs_disk::SECTOR;
use moafs_disk::model::{Command, Drive, DriveSpec, SpecError};
use moafs_runtime::Time;

use crate::TRANSFER_BYTES_MAX;
use crate::queue::{Ask, Verb};

/// Sectors read in one command to measure the media rate: many cylinders, and still in the
/// outermost zone.
const RATE_SECTORS: u64 = (64 << 20) / SECTOR as u64;

/// A drive to be modelled.
#[derive(Debug, Clone, PartialEq)]
pub struct Model {
    name: String,
    spec: DriveSpec,
    set: Vec<String>,
}

/// A drive that cannot be loaded.
#[derive(Debug, thiserror::Error)]
pub enum ModelError {
    /// The name, the description file or a value is wrong.
    #[error(transparent)]
    Spec(#[from] SpecError),
    /// A parameter was given without a value.
    #[error("`{0}` sets nothing: give PARAMETER=VALUE, such as cache.write=false")]
    NotAnAssignment(String),
}

impl Model {
    /// Loads a drive by its name or by the path of its description, with parameters set as
    /// `name=value`.
    ///
    /// # Errors
    /// Fails if there is no such drive or parameter (the message lists what there is), or a value makes no sense.
    pub fn load(name: &str, set: &[String]) -> Result<Model, ModelError> {
        let mut spec = DriveSpec::load(name)?;
        for assignment in set {
            let (parameter, value) =
                assignment.split_once('=').ok_or_else(|| ModelError::NotAnAssignment(assignment.clone()))?;
            spec.set(parameter.trim(), value.trim())?;
        }
        let model = Model { name: name.to_owned(), spec, set: set.to_vec() };
        // Building the drive once reports every error in the description and the parameters.
        model.drive()?;
        Ok(model)
    }

    /// Returns the name or path that the drive was loaded by.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the parameters that were set, as `name=value`.
    pub fn set_parameters(&self) -> &[String] {
        &self.set
    }

    /// Returns the drive's description, one line of text.
    pub fn description(&self) -> &str {
        self.spec.description()
    }

    /// Returns the capacity in bytes.
    pub fn bytes(&self) -> u64 {
        self.spec.sectors() * SECTOR as u64
    }

    /// Returns the size of the drive's largest command in bytes, limited to the largest request
    /// that FUSE passes on.
    pub fn transfer_bytes_max(&self) -> u64 {
        (u64::from(self.spec.transfer_sectors_max()) * SECTOR as u64).min(TRANSFER_BYTES_MAX)
    }

    /// Returns the media rate in bytes per second: bytes that pass under the head at the start of
    /// the disk (crossings of tracks and cylinders included), or that come from the chips over the
    /// link. Nothing can be faster.
    ///
    /// # Errors
    /// Fails as [`Model::load`] does.
    pub fn media_bytes_per_s(&self) -> Result<f64, ModelError> {
        let sectors = RATE_SECTORS.min(self.spec.sectors());
        let service = self.drive()?.execute(Time(0), Command::read(0, sectors));
        Ok((sectors * SECTOR as u64) as f64 * 1e9 / (service.transfer_ns + service.bus_ns).max(1) as f64)
    }

    /// Builds the drive in its initial state, at modelled time 0.
    pub(crate) fn drive(&self) -> Result<Drive, ModelError> {
        Ok(Drive::new(&self.spec)?)
    }
}

impl From<&Ask> for Command {
    fn from(ask: &Ask) -> Command {
        let (at, sectors) = (ask.sectors.start, ask.sectors.end - ask.sectors.start);
        match ask.verb {
            Verb::Read => Command::read(at, sectors),
            Verb::Write => Command::write(at, sectors),
            Verb::Flush => Command::flush(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_is_that_of_the_outermost_zone() {
        let rate = Model::load("st3160812as", &[]).unwrap().media_bytes_per_s().unwrap();
        assert!((76.5e6..77.8e6).contains(&rate), "{rate}");
    }

    #[test]
    fn parameters_are_set_and_wrong_ones_explained() {
        let set = |text: &str| Model::load("st3160812as", &[text.to_owned()]);
        assert_eq!(set("rpm = 5400").unwrap().set_parameters(), ["rpm = 5400"]);
        assert!(set("rpm").unwrap_err().to_string().contains("PARAMETER=VALUE"));
        assert!(set("colour=red").unwrap_err().to_string().contains("seek.average_ms"));
        let unknown = Model::load("no-such-drive", &[]).unwrap_err().to_string();
        assert!(unknown.contains("st3160812as"), "{unknown}");
    }

    #[test]
    fn a_long_sequential_write_and_its_flush_take_the_time_of_the_media() {
        let model = Model::load("st3160812as", &[]).unwrap();
        let mut drive = model.drive().unwrap();
        let (sectors, bytes) = (256, 64 << 20);
        let mut now = Time(0);
        for at in (0..bytes / SECTOR as u64).step_by(256) {
            now = drive.execute(now, Command::write(at, sectors)).finished;
        }
        now = drive.execute(now, Command::flush()).finished;
        let ideal_s = bytes as f64 / model.media_bytes_per_s().unwrap();
        let (took_s, background) = (now.0 as f64 / 1e9, drive.background());
        assert!((0.98..1.1).contains(&(took_s / ideal_s)), "{took_s} s, ideal {ideal_s} s, {background:?}");
    }
}
