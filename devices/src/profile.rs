//! Device profiles: what a board, computer or virtual machine can do, with the sources of the figures.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use serde::Deserialize;

use crate::burst::Burst;

/// The profiles in `devices/profiles`, weakest first, by what they can do for ever.
const TEXTS: [&str; 9] = [
    include_str!("../profiles/cloud-burstable.toml"),
    include_str!("../profiles/raspberry-pi-3.toml"),
    include_str!("../profiles/jetson-nano.toml"),
    include_str!("../profiles/raspberry-pi-4.toml"),
    include_str!("../profiles/cloud-small.toml"),
    include_str!("../profiles/jetson-orin-nano.toml"),
    include_str!("../profiles/raspberry-pi-5.toml"),
    include_str!("../profiles/mini-pc.toml"),
    include_str!("../profiles/laptop.toml"),
];

/// A kind of device.
///
/// Speeds are relative to the *reference core*: one core of the profile `mini-pc`, an Intel N100, which does 15.7 Gflop/s
/// of the double-precision Linpack benchmark (HPL). Training in `f32` is bound by the same multiplications.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Profile {
    /// Name, as used on command lines: small letters, digits and `-`.
    pub name: String,
    /// Name for people, with the exact model.
    pub title: String,
    /// CPU cores.
    pub cores: u32,
    /// Speed of one core over that of the reference core.
    pub core_speed: f64,
    /// Cores that may be used for ever, where a limit of the device or its owner is below `cores`.
    pub quota_cores: Option<f64>,
    /// Memory in bytes.
    pub memory_bytes: u64,
    /// From the device to the hub, in bytes per second.
    pub uplink_bytes_per_s: f64,
    /// From the hub to the device, in bytes per second.
    pub downlink_bytes_per_s: f64,
    /// Time of one way between device and hub, in seconds.
    pub latency_s: f64,
    /// CPU credits, where the device has a baseline and may burst above it.
    pub burst: Option<Burst>,
    /// Where each figure is from.
    pub sources: Vec<Source>,
}

/// Where a figure is from.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Source {
    /// Which figures, and how they follow from what is cited.
    pub figure: String,
    /// Title and address of what is cited, or `assumed`.
    pub from: String,
}

/// Why there is no profile.
#[derive(Debug, thiserror::Error)]
pub enum ProfileError {
    /// No profile of this name, and no such file.
    #[error("there is no profile `{name}`; known: {known}; or give the path of a TOML file")]
    Unknown {
        /// What was asked for.
        name: String,
        /// The built-in ones.
        known: String,
    },
    /// The file cannot be read.
    #[error("cannot read the profile {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        cause: std::io::Error,
    },
    /// The text is no profile.
    #[error("this is no profile")]
    Parse(#[from] toml::de::Error),
    /// A figure is impossible.
    #[error("profile `{name}`: {key} is {found}; {allowed}")]
    Figure {
        /// The profile.
        name: String,
        /// The key in the file.
        key: &'static str,
        /// Its value.
        found: String,
        /// What it may be.
        allowed: &'static str,
    },
}

impl Profile {
    /// The built-in profiles, weakest first.
    pub fn built_in() -> &'static [Profile] {
        static PROFILES: LazyLock<Vec<Profile>> = LazyLock::new(|| {
            TEXTS.iter().map(|text| Profile::parse(text).expect("a test reads every built-in profile")).collect()
        });
        &PROFILES
    }

    /// The built-in profile of this name, or else the profile in this file.
    ///
    /// # Errors
    /// [`ProfileError`]
    pub fn find(name_or_path: &str) -> Result<Profile, ProfileError> {
        if let Some(profile) = Profile::built_in().iter().find(|profile| profile.name == name_or_path) {
            return Ok(profile.clone());
        }
        let path = Path::new(name_or_path);
        if path.is_file() {
            return Profile::read(path);
        }
        let known: Vec<&str> = Profile::built_in().iter().map(|profile| profile.name.as_str()).collect();
        Err(ProfileError::Unknown { name: name_or_path.to_owned(), known: known.join(", ") })
    }

    /// Reads a profile's file.
    ///
    /// # Errors
    /// [`ProfileError`]
    pub fn read(path: &Path) -> Result<Profile, ProfileError> {
        let text =
            std::fs::read_to_string(path).map_err(|cause| ProfileError::Read { path: path.to_owned(), cause })?;
        Profile::parse(&text)
    }

    /// Reads and checks a profile's text.
    ///
    /// # Errors
    /// [`ProfileError::Parse`], [`ProfileError::Figure`]
    pub fn parse(text: &str) -> Result<Profile, ProfileError> {
        let profile: Profile = toml::from_str(text)?;
        profile.check()?;
        Ok(profile)
    }

    fn check(&self) -> Result<(), ProfileError> {
        let wrong = |key, found: &dyn fmt::Display, allowed| {
            Err(ProfileError::Figure { name: self.name.clone(), key, found: found.to_string(), allowed })
        };
        let plain = |letter: char| letter.is_ascii_lowercase() || letter.is_ascii_digit() || letter == '-';
        if self.name.is_empty() || !self.name.chars().all(plain) || self.name.starts_with('-') {
            return wrong("name", &self.name, "write small letters, digits and `-`");
        }
        if !(1..=4096).contains(&self.cores) {
            return wrong("cores", &self.cores, "1 to 4096 are possible");
        }
        let positive = |key, value: f64| match value.is_finite() && value > 0.0 {
            true => Ok(()),
            false => wrong(key, &value, "it must be a number above 0"),
        };
        positive("core_speed", self.core_speed)?;
        positive("uplink_bytes_per_s", self.uplink_bytes_per_s)?;
        positive("downlink_bytes_per_s", self.downlink_bytes_per_s)?;
        if !(self.latency_s.is_finite() && self.latency_s >= 0.0) {
            return wrong("latency_s", &self.latency_s, "it must be a number of seconds, 0 or more");
        }
        if self.memory_bytes < 1 << 20 {
            return wrong("memory_bytes", &self.memory_bytes, "a device has a mebibyte at least");
        }
        let cores = f64::from(self.cores);
        if let Some(quota) = self.quota_cores
            && !(quota > 0.0 && quota <= cores)
        {
            return wrong("quota_cores", &quota, "it must be above 0 and at most `cores`");
        }
        if let Some(Burst { baseline_cores, credits_s, credits_s_max }) = self.burst {
            if !(baseline_cores > 0.0 && baseline_cores <= cores) {
                return wrong("burst.baseline_cores", &baseline_cores, "it must be above 0 and at most `cores`");
            }
            if !(credits_s_max.is_finite() && credits_s_max >= 0.0) {
                return wrong("burst.credits_s_max", &credits_s_max, "it must be a number of core-seconds, 0 or more");
            }
            if !(credits_s >= 0.0 && credits_s <= credits_s_max) {
                return wrong("burst.credits_s", &credits_s, "it must be 0 or more and at most `credits_s_max`");
            }
        }
        if self.sources.is_empty() {
            return wrong("sources", &"empty", "say where the figures are from");
        }
        Ok(())
    }

    /// Cores that may be busy at the same time, credits permitting.
    pub fn usable_cores(&self) -> f64 {
        self.quota_cores.unwrap_or(f64::from(self.cores))
    }

    /// Cores that may be busy for ever: the baseline where the device lives on credits.
    pub fn sustained_cores(&self) -> f64 {
        let baseline = self.burst.as_ref().map_or(f64::INFINITY, |burst| burst.baseline_cores);
        self.usable_cores().min(baseline)
    }

    /// Speed of the whole device, in reference cores, while it has credits.
    pub fn speed(&self) -> f64 {
        self.usable_cores() * self.core_speed
    }

    /// Speed of the whole device, in reference cores, for ever.
    pub fn sustained_speed(&self) -> f64 {
        self.sustained_cores() * self.core_speed
    }

    /// Time to send this many bytes to the hub, in seconds.
    pub fn upload_s(&self, bytes: u64) -> f64 {
        self.latency_s + bytes as f64 / self.uplink_bytes_per_s
    }

    /// Time to get this many bytes from the hub, in seconds.
    pub fn download_s(&self, bytes: u64) -> f64 {
        self.latency_s + bytes as f64 / self.downlink_bytes_per_s
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = r#"
        name = "board"
        title = "A board"
        cores = 4
        core_speed = 0.5
        memory_bytes = 1073741824
        uplink_bytes_per_s = 1e6
        downlink_bytes_per_s = 2e6
        latency_s = 0.01
        sources = [{ figure = "all", from = "assumed" }]
    "#;

    #[test]
    fn every_built_in_profile_is_good_unlike_the_others_and_cites_its_sources() {
        let profiles = Profile::built_in();
        for profile in profiles {
            assert_eq!(profiles.iter().filter(|other| other.name == profile.name).count(), 1, "{}", profile.name);
            let cited = profile.sources.iter().filter(|source| source.from.contains("https://")).count();
            assert!(cited >= 2, "{} cites {cited} sources", profile.name);
            assert!(profile.sources.iter().any(|source| source.figure.contains("core_speed")), "{}", profile.name);
            assert_eq!(Profile::find(&profile.name).unwrap(), *profile);
        }
        let speeds: Vec<f64> = profiles.iter().map(Profile::sustained_speed).collect();
        assert!(speeds.is_sorted(), "weakest first: {speeds:?}");
    }

    #[test]
    fn the_profile_of_the_reference_core_has_its_speed() {
        assert_eq!(Profile::find("mini-pc").unwrap().core_speed, 1.0);
    }

    #[test]
    fn speed_follows_cores_quota_and_credits() {
        let mut profile = Profile::parse(GOOD).unwrap();
        assert_eq!((profile.speed(), profile.sustained_speed()), (2.0, 2.0));
        profile.quota_cores = Some(3.0);
        profile.burst = Some(Burst { baseline_cores: 1.0, credits_s: 0.0, credits_s_max: 60.0 });
        assert_eq!((profile.speed(), profile.sustained_speed()), (1.5, 0.5));
    }

    #[test]
    fn a_message_takes_its_latency_and_its_bytes() {
        let profile = Profile::parse(GOOD).unwrap();
        assert!((profile.upload_s(1_000_000) - 1.01).abs() < 1e-12);
        assert!((profile.download_s(1_000_000) - 0.51).abs() < 1e-12);
    }

    #[test]
    fn impossible_figures_are_named() {
        for (from, to, key) in [
            ("\"board\"", "\"a board\"", "name"),
            ("cores = 4", "cores = 0", "cores"),
            ("core_speed = 0.5", "core_speed = nan", "core_speed"),
            ("core_speed = 0.5", "core_speed = 0.5\nquota_cores = 5.0", "quota_cores"),
            ("1073741824", "12", "memory_bytes"),
            ("uplink_bytes_per_s = 1e6", "uplink_bytes_per_s = 0", "uplink_bytes_per_s"),
            ("0.01", "-1.0", "latency_s"),
            ("{ figure = \"all\", from = \"assumed\" }", "", "sources"),
            (
                "sources",
                "burst = { baseline_cores = 9.0, credits_s = 0.0, credits_s_max = 1.0 }\nsources",
                "burst.baseline_cores",
            ),
            (
                "sources",
                "burst = { baseline_cores = 1.0, credits_s = 2.0, credits_s_max = 1.0 }\nsources",
                "burst.credits_s",
            ),
        ] {
            let error = Profile::parse(&GOOD.replacen(from, to, 1)).unwrap_err();
            assert!(matches!(&error, ProfileError::Figure { key: found, .. } if *found == key), "{key}: {error}");
        }
        assert!(matches!(Profile::parse("cores = 4\nspeed = 1"), Err(ProfileError::Parse(_))));
    }

    #[test]
    fn a_file_of_the_users_own_is_a_profile_too_and_an_unknown_name_is_answered_with_the_known_ones() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("board.toml");
        std::fs::write(&path, GOOD).unwrap();
        assert_eq!(Profile::find(path.to_str().unwrap()).unwrap().name, "board");
        let error = Profile::find("raspberry-pi-9").unwrap_err().to_string();
        assert!(error.contains("raspberry-pi-9") && error.contains("jetson-orin-nano"), "{error}");
    }
}
