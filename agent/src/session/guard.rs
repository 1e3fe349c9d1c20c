//! Decides whether a job's kernel is run, before it is fetched, read or compiled.

use std::path::Path;

use omnilearn_kernel_host::{PublicKey, Signature, WrongSignature};
use omnilearn_wire::message::JobOffer;
use tracing::info;

use super::known_hubs::{Acquaintance, KnownHubError, KnownHubs};
use crate::config::HubAddress;
use crate::trust::Trust;

/// Looks at the signatures of each job's kernel.
#[derive(Debug)]
pub(super) struct Guard {
    trust: Trust,
    known_hubs: KnownHubs,
}

/// Why a kernel is not run, in one sentence for the hub's operator.
#[derive(Debug, thiserror::Error)]
pub(super) enum Refusal {
    #[error("the kernel is not signed; use a hub of the agent's version, which signs every kernel")]
    Unsigned,
    #[error("{0}, so it was changed on its way or put beside another; submit the job again")]
    Wrong(#[from] WrongSignature),
    #[error(
        "the kernel is signed by {signers}, but this agent runs only what {trusted} has signed; if that is too narrow, start \
         the agent with one more --trust KEY, where KEY is what `omnilearn-hub key show` prints"
    )]
    Stranger { signers: String, trusted: String },
    #[error(transparent)]
    Hub(#[from] KnownHubError),
}

fn names<'a>(keys: impl IntoIterator<Item = &'a PublicKey>) -> String {
    keys.into_iter().map(PublicKey::short).collect::<Vec<_>>().join(" or ")
}

impl Guard {
    /// A guard for jobs of this hub. Keys that come first are kept in the cache folder.
    pub(super) fn new(trust: Trust, cache: &Path, hub: &HubAddress) -> Guard {
        Guard { trust, known_hubs: KnownHubs::new(cache, hub) }
    }

    /// Whose signature lets the kernel of this offer's digest in. That the kernel has this digest is checked when it is
    /// there.
    pub(super) fn check(&self, offer: &JobOffer) -> Result<PublicKey, Refusal> {
        let signatures: Vec<Signature> = offer.signatures.iter().map(Signature::from).collect();
        let hub = signatures.first().ok_or(Refusal::Unsigned)?;
        let Trust::Keys(trusted) = &self.trust else {
            // Before the key is kept, so that nobody can leave a key here that is not theirs.
            hub.verify(&offer.kernel_digest)?;
            if self.known_hubs.accept(hub.key())? == Acquaintance::New {
                let file = self.known_hubs.file().display();
                info!(key = hub.key().short(), %file, "the hub's key is kept, and no other is taken from it");
            }
            return Ok(hub.key());
        };
        let mut wrong = None;
        for signature in signatures.iter().filter(|signature| trusted.contains(&signature.key())) {
            match signature.verify(&offer.kernel_digest) {
                Ok(()) => return Ok(signature.key()),
                Err(error) => wrong = Some(error),
            }
        }
        Err(wrong.map_or_else(
            || {
                let signers: Vec<PublicKey> = signatures.iter().map(Signature::key).collect();
                Refusal::Stranger { signers: names(&signers), trusted: names(trusted) }
            },
            Refusal::Wrong,
        ))
    }
}
