//! Which drive: a model of `moafs_disk`, with the parameters that were set, and how our queue speaks to it.

use moafs_disk::SECTOR;
use moafs_disk::model::{Command, Drive, DriveSpec, SpecError};
use moafs_runtime::Time;

use crate::TRANSFER_BYTES_MAX;
use crate::queue::{Ask, Verb};

/// What is read at once to learn the rate of the media: many cylinders, and still in the outermost zone.
const RATE_SECTORS: u64 = (64 << 20) / SECTOR as u64;

/// A drive to be modelled.
#[derive(Debug, Clone, PartialEq)]
pub struct Model {
    name: String,
    spec: DriveSpec,
    set: Vec<String>,
}

/// Why there is no such drive.
#[derive(Debug, thiserror::Error)]
pub enum ModelError {
    /// Name, file or value.
    #[error(transparent)]
    Spec(#[from] SpecError),
    /// A parameter without a value.
    #[error("`{0}` sets nothing: give PARAMETER=VALUE, such as cache.write=false")]
    NotAnAssignment(String),
}

impl Model {
    /// A drive by its name or by the path of its description, with parameters set as `name=value`.
    ///
    /// # Errors
    /// When there is no such drive or parameter (the message lists what there is), or a value makes no sense.
    pub fn load(name: &str, set: &[String]) -> Result<Model, ModelError> {
        let mut spec = DriveSpec::load(name)?;
        for assignment in set {
            let (parameter, value) =
                assignment.split_once('=').ok_or_else(|| ModelError::NotAnAssignment(assignment.clone()))?;
            spec.set(parameter.trim(), value.trim())?;
        }
        let model = Model { name: name.to_owned(), spec, set: set.to_vec() };
        // Whatever can be wrong with it is said here.
        model.drive()?;
        Ok(model)
    }

    /// As it was asked for.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Parameters that were set, `name=value`.
    pub fn set_parameters(&self) -> &[String] {
        &self.set
    }

    /// What it is, in one line.
    pub fn description(&self) -> &str {
        self.spec.description()
    }

    /// Capacity.
    pub fn bytes(&self) -> u64 {
        self.spec.sectors() * SECTOR as u64
    }

    /// Its largest command, as far as FUSE can pass that on.
    pub fn transfer_bytes_max(&self) -> u64 {
        (u64::from(self.spec.transfer_sectors_max()) * SECTOR as u64).min(TRANSFER_BYTES_MAX)
    }

    /// Bytes per second that pass under the head at the start of the disk, crossings of tracks and cylinders included, or
    /// that come from the chips over the link: nothing can be faster.
    ///
    /// # Errors
    /// As [`Model::load`].
    pub fn media_bytes_per_s(&self) -> Result<f64, ModelError> {
        let sectors = RATE_SECTORS.min(self.spec.sectors());
        let service = self.drive()?.execute(Time(0), Command::read(0, sectors));
        Ok((sectors * SECTOR as u64) as f64 * 1e9 / (service.transfer_ns + service.bus_ns).max(1) as f64)
    }

    /// One of it, at time 0.
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
