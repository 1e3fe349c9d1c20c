//! Where token, keys and passwords come from, so that an agent can read them again while it runs.

use std::error::Error;
use std::path::PathBuf;

use omnilearn_mqtt::address::BrokerUrl;
use omnilearn_mqtt::options::{BrokerArgs, Options};

use super::token::Token;
use crate::trust::Trust;

/// Where token, keys and passwords come from.
#[derive(Clone, Debug, Default)]
pub struct Sources {
    /// File with the token.
    pub token_file: Option<PathBuf>,
    /// The token of the environment, which holds where there is no file.
    pub environment_token: Option<Token>,
    /// Values of `--trust`.
    pub trust: Vec<String>,
    /// The agent's name, which is its user at the broker where no other is given.
    pub name: String,
    /// The broker, and what was said of how to log in there.
    pub broker: Option<(BrokerUrl, BrokerArgs)>,
}

/// What can be read again.
#[derive(Clone, Debug)]
pub struct Secrets {
    /// The hub's token.
    pub token: Option<Token>,
    /// Whose kernels are run.
    pub trust: Trust,
    /// The broker and how to log in there.
    pub broker: Option<Options>,
}

impl Sources {
    /// Reads all of them.
    ///
    /// # Errors
    /// One line that says what is wrong and what to do.
    pub fn read(&self) -> Result<Secrets, String> {
        let token = match (&self.token_file, &self.environment_token) {
            (Some(file), _) => {
                let text = std::fs::read_to_string(file)
                    .map_err(|cause| format!("cannot read the token file {}: {cause}", file.display()))?;
                Some(Token::new(&text).map_err(|error| format!("{}: {error}", file.display()))?)
            }
            (None, token) => token.clone(),
        };
        let trust = Trust::parse(&self.trust).map_err(|error| error.to_string())?;
        let options = |(broker, arguments): &(BrokerUrl, BrokerArgs)| arguments.options(broker.clone(), &self.name);
        let broker = self.broker.as_ref().map(options).transpose().map_err(|error| match error.source() {
            Some(cause) => format!("{error}: {cause}"),
            None => error.to_string(),
        })?;
        Ok(Secrets { token, trust, broker })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_that_was_changed_is_read_again_and_one_that_is_gone_is_named() {
        let folder = tempfile::TempDir::new().unwrap();
        let file = folder.path().join("token");
        let sources = Sources { token_file: Some(file.clone()), ..Sources::default() };
        for token in ["one", "two"] {
            std::fs::write(&file, format!("{token}\n")).unwrap();
            assert_eq!(sources.read().unwrap().token.unwrap().reveal(), token);
        }
        std::fs::remove_file(&file).unwrap();
        let error = sources.read().unwrap_err();
        assert!(error.contains(&*file.to_string_lossy()), "{error}");
    }
}
