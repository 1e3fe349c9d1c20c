//! `cargo xtask fleet compose`: compose files, written from a list of agents.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use clap::Args;
use omnilearn_devices::compose::{CORES_DEFAULT, ComposeFleet};
use omnilearn_devices::profile::Profile;

use super::ratios::HeterogeneityLevel;
use crate::demo::parse_level;
use crate::workspace::Workspace;

/// Which file to write.
#[derive(Args, Debug)]
#[command(
    after_help = "Examples:\n  cargo xtask fleet compose\n      Writes the files that are checked in: HL1, HL2, HL4, HL8 \
    and 32 agents, for two cores.\n  cargo xtask fleet compose --hl 8 --cores 7.2 --out devices/compose/big.yml\n      HL8 for a \
    machine of eight cores.\n  cargo xtask fleet compose --profile raspberry-pi-4=10 --profile jetson-nano=2 --out \
    devices/compose/lab.yml\n      Twelve boards.\n\nA file names others relative to itself (secrets, jobs, the sources), so keep it in devices/compose."
)]
pub(crate) struct ComposeArguments {
    /// Four agents at this heterogeneity level; 1, 2, 4 or 8
    #[arg(long, value_parser = parse_level, conflicts_with_all = ["ratio", "profile"])]
    hl: Option<HeterogeneityLevel>,
    /// Agents with so many shares of the cores each, such as `2=10` for ten with two shares; may be given more than once
    #[arg(long, value_name = "SHARE=AGENTS", value_parser = parse_ratio, conflicts_with = "profile")]
    ratio: Vec<(u32, u32)>,
    /// Agents that stand for a device, such as `raspberry-pi-4=10`; a profile's name or file; may be given more than once
    #[arg(long, value_name = "PROFILE=AGENTS", value_parser = parse_profile)]
    profile: Vec<(Profile, u32)>,
    /// Cores of all agents together
    #[arg(long, default_value_t = CORES_DEFAULT)]
    cores: f64,
    /// Where to write [default: standard output]
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
}

fn parse_ratio(text: &str) -> Result<(u32, u32), String> {
    let (share, agents) = text.split_once('=').ok_or("write SHARE=AGENTS, such as 2=10")?;
    let number = |text: &str| text.parse().ok().filter(|number| (1..=10_000).contains(number));
    number(share).zip(number(agents)).ok_or_else(|| "shares and agents are numbers from 1 to 10000".to_owned())
}

fn parse_profile(text: &str) -> Result<(Profile, u32), String> {
    let (name, agents) = text.rsplit_once('=').unwrap_or((text, "1"));
    let profile = Profile::find(name).map_err(|error| describe(&error))?;
    let agents = agents.parse().ok().filter(|agents| (1..=10_000).contains(agents));
    Ok((profile, agents.ok_or("the number of agents is from 1 to 10000")?))
}

fn describe(error: &dyn std::error::Error) -> String {
    match error.source() {
        Some(cause) => format!("{error}: {}", describe(cause)),
        None => error.to_string(),
    }
}

/// Writes one file, or those that are checked in.
///
/// # Errors
/// When the fleet is impossible or the file cannot be written.
pub(crate) fn run(workspace: &Workspace, arguments: &ComposeArguments) -> anyhow::Result<()> {
    let cores = arguments.cores;
    let fleet = match (&arguments.hl, &arguments.ratio[..], &arguments.profile[..]) {
        (Some(level), ..) => ComposeFleet::of_level(*level, cores),
        (None, [], []) => return write_all(&folder(workspace), arguments),
        (None, [], profiles) => ComposeFleet::of_profiles(profiles, cores),
        (None, ratios, _) => {
            let text: Vec<String> = ratios.iter().map(|(share, agents)| format!("--ratio {share}={agents}")).collect();
            ComposeFleet::of_ratios(ratios, cores, text.join(" "))
        }
    };
    let Some(path) = &arguments.out else {
        print!("{}", fleet.to_yaml()?);
        return Ok(());
    };
    let name = path.file_stem().and_then(|name| name.to_str()).context("--out needs the name of a file")?;
    write(path, &ComposeFleet { name: name.to_owned(), ..fleet })
}

/// Where the files are that are checked in.
pub(crate) fn folder(workspace: &Workspace) -> PathBuf {
    workspace.root().join("devices/compose")
}

fn write_all(folder: &Path, arguments: &ComposeArguments) -> anyhow::Result<()> {
    if arguments.out.is_some() || arguments.cores != CORES_DEFAULT {
        bail!("name the agents of a fleet of your own with --hl, --ratio or --profile");
    }
    for fleet in ComposeFleet::checked_in() {
        write(&folder.join(&fleet.name).with_extension("yml"), &fleet)?;
    }
    Ok(())
}

fn write(path: &Path, fleet: &ComposeFleet) -> anyhow::Result<()> {
    fs::write(path, fleet.to_yaml()?).with_context(|| format!("writing {}", path.display()))?;
    println!("{}: {}", path.display(), fleet.title);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn agents_are_counted_behind_a_share_or_a_profile() {
        assert_eq!(parse_ratio("2=10"), Ok((2, 10)));
        assert!(["2", "0=1", "2=0", "a=1", "2=-1"].iter().all(|text| parse_ratio(text).is_err()));
        let (profile, agents) = parse_profile("raspberry-pi-4=10").unwrap();
        assert_eq!((profile.name.as_str(), agents), ("raspberry-pi-4", 10));
        assert_eq!(parse_profile("laptop").unwrap().1, 1);
        assert!(parse_profile("abacus=3").unwrap_err().contains("abacus"));
        assert!(parse_profile("laptop=many").is_err());
    }
}
