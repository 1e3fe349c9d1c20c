//! Brokers that ask who is there, and connections that nobody reads along.

use std::path::Path;
use std::process::Command;

use omnilearn_mqtt::client::ClientState;
use omnilearn_mqtt::options::{Credentials, Options, TlsFiles};
use omnilearn_mqtt::stream::{Acceptor, Dialer};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::broker::Mosquitto;
use crate::{client, options, topics, within};

/// An authority, and certificates that it signed, in PEM.
struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
}

impl Authority {
    fn new() -> Authority {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, "authority");
        Authority { issuer: CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap() }
    }

    fn pem(&self) -> Vec<u8> {
        self.issuer.pem().into_bytes()
    }

    /// A certificate for a name, and its key.
    fn certify(&self, name: &str) -> (Vec<u8>, Vec<u8>) {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(vec![name.to_owned()]).unwrap();
        params.distinguished_name.push(DnType::CommonName, name);
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        (certificate.pem().into_bytes(), key.serialize_pem().into_bytes())
    }

    /// Configuration of a broker with a certificate of this authority.
    fn broker(&self, folder: &Path) -> String {
        let (certificate, key) = self.certify("127.0.0.1");
        for (name, text) in [("ca.pem", self.pem()), ("cert.pem", certificate), ("key.pem", key)] {
            std::fs::write(folder.join(name), text).unwrap();
        }
        let file = |name: &str| folder.join(name).display().to_string();
        format!("cafile {}\ncertfile {}\nkeyfile {}\n", file("ca.pem"), file("cert.pem"), file("key.pem"))
    }
}

/// Whether hub and agent can speak with these options.
async fn speak(options: &Options) {
    let topics = omnilearn_mqtt::topics::Topics::new(options.broker.prefix());
    let at_hub = client(options.clone(), "hub", topics.hub_probe());
    let at_agent = client(options.clone(), "pi-4", topics.agent_probe("pi-4"));
    let mut acceptor = Acceptor::new(at_hub, topics.clone());
    let dialer = Dialer::new(at_agent, topics, "pi-4");
    let (dialed, mut accepted) = within(10, async { tokio::join!(dialer.dial(), acceptor.accept()) }).await;
    let mut dialed = dialed.unwrap();
    dialed.write_all(&[7; 300_000]).await.unwrap();
    let mut found = vec![0; 300_000];
    within(10, accepted.read_exact(&mut found)).await.unwrap();
    assert!(found.iter().all(|&byte| byte == 7));
}

/// Why these options lead to no connection.
async fn refusal(options: Options) -> String {
    let url = options.broker.to_string();
    let client = client(options, "pi-4", topics(&url).agent_probe("pi-4"));
    let mut state = client.state();
    let refused = within(10, state.wait_for(|state| !matches!(state, ClientState::Connecting { reason: None }))).await;
    match &*refused.unwrap() {
        ClientState::Connecting { reason: Some(reason) } => reason.clone(),
        other => panic!("{other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_password_over_tls_opens_the_broker_and_nothing_else_does() {
    let authority = Authority::new();
    let broker = Mosquitto::start_with(|folder| {
        let passwords = folder.join("passwords");
        std::fs::write(&passwords, "pi:a secret\n").unwrap();
        let hashed = Command::new("mosquitto_passwd").arg("-U").arg(&passwords).status();
        assert!(hashed.unwrap().success());
        format!("{}allow_anonymous false\npassword_file {}\n", authority.broker(folder), passwords.display())
    });
    let Some(broker) = broker else { return };
    let url = broker.url("mqtts", "omnilearn");
    let credentials = |password: &str| Some(Credentials { user: "pi".into(), password: password.into() });
    let tls = TlsFiles { ca: Some(authority.pem()), client: None };
    let good = Options { credentials: credentials("a secret"), tls, ..options(&url) };
    speak(&good).await;

    let refused = |options: Options| async move { within(15, refusal(options)).await };
    let reason = refused(Options { credentials: credentials("another"), ..good.clone() }).await;
    assert!(reason.contains("--mqtt-user") && !reason.contains("another"), "{reason}");
    let stranger = TlsFiles { ca: Some(Authority::new().pem()), client: None };
    let reason = refused(Options { tls: stranger, ..good.clone() }).await;
    assert!(reason.contains("certificate"), "{reason}");
    let plain = Options { credentials: good.credentials.clone(), ..options(&broker.url("mqtt", "omnilearn")) };
    assert!(!refused(plain).await.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broker_that_wants_certificates_takes_those_of_its_authority() {
    let authority = Authority::new();
    let broker = Mosquitto::start_with(|folder| format!("{}require_certificate true\n", authority.broker(folder)));
    let Some(broker) = broker else { return };
    let url = broker.url("mqtts", "omnilearn");
    let with = |client| Options { tls: TlsFiles { ca: Some(authority.pem()), client }, ..options(&url) };
    speak(&with(Some(authority.certify("pi-4")))).await;
    assert!(!within(15, refusal(with(None))).await.is_empty());
    assert!(!within(15, refusal(with(Some(Authority::new().certify("pi-4"))))).await.is_empty());
}
