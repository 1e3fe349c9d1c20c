//! `cargo xtask fleet profiles`: the device profiles as a table.

use clap::Args;
use omnilearn_devices::profile::Profile;

/// What to show.
#[derive(Args, Debug)]
#[command(after_help = "Examples:\n  cargo xtask fleet profiles\n  cargo xtask fleet profiles raspberry-pi-4\n\n\
    Speeds are in reference cores: one core of the mini-PC. `for ever` leaves out what CPU credits add for a while.")]
pub(crate) struct ProfilesArguments {
    /// Names or TOML files; these are shown with the sources of their figures [default: all, without]
    #[arg(value_name = "PROFILE")]
    profiles: Vec<String>,
}

/// Prints the table.
///
/// # Errors
/// When a profile is unknown or its file is wrong.
pub(crate) fn run(arguments: &ProfilesArguments) -> anyhow::Result<()> {
    if arguments.profiles.is_empty() {
        print!("{}", table(Profile::built_in()));
        return Ok(());
    }
    let profiles = arguments.profiles.iter().map(|name| Profile::find(name)).collect::<Result<Vec<_>, _>>()?;
    print!("{}", table(&profiles));
    for profile in &profiles {
        println!("\n{}", profile.title);
        for source in &profile.sources {
            println!("  {}\n    {}", source.figure, source.from);
        }
    }
    Ok(())
}

fn table(profiles: &[Profile]) -> String {
    let mut table = format!(
        "{:<18} {:>5} {:>6} {:>6} {:>9} {:>7} {:>10} {:>10} {:>8}\n",
        "profile", "cores", "each", "speed", "for ever", "memory", "up", "down", "latency"
    );
    for profile in profiles {
        table.push_str(&format!(
            "{:<18} {:>5} {:>6.3} {:>6.2} {:>9.2} {:>3} GiB {:>5.1} MB/s {:>5.1} MB/s {:>5.1} ms\n",
            profile.name,
            profile.cores,
            profile.core_speed,
            profile.speed(),
            profile.sustained_speed(),
            profile.memory_bytes >> 30,
            profile.uplink_bytes_per_s / 1e6,
            profile.downlink_bytes_per_s / 1e6,
            profile.latency_s * 1e3,
        ));
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_has_a_line_for_each_profile_and_what_credits_add() {
        let table = table(Profile::built_in());
        assert_eq!(table.lines().count(), 1 + Profile::built_in().len());
        let burstable = table.lines().find(|line| line.starts_with("cloud-burstable")).unwrap();
        let fields: Vec<&str> = burstable.split_whitespace().collect();
        assert_eq!(fields[1..5], ["2", "0.703", "1.41", "0.28"]);
    }
}
