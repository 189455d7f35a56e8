"""A supervisor of which only the control socket is real: it says what the test has scripted."""

from dataclasses import dataclass, field

from protocol.ctl import CodeWanted, CtlReply, CtlRequest, VerifyCode
from supervisor.ctlserver import Conversation
from supervisor.home import Home


@dataclass
class ScriptedSupervisor:
    """script: the replies to each request in turn; heard: all requests and codes."""

    home: Home
    script: list[list[CtlReply]] = field(default_factory=list)
    heard: list[CtlRequest | VerifyCode] = field(default_factory=list)

    def says(self, *replies: CtlReply) -> None:
        self.script.append(list(replies))

    async def handle(self, request: CtlRequest, conversation: Conversation) -> None:
        self.heard.append(request)
        for reply in self.script.pop(0):
            conversation.reply(reply)
            if isinstance(reply, CodeWanted):
                self.heard.append(await conversation.next())
