"""Requests of operators that change a group: its settings, a reset of its progress, its deletion. RocketMQ: AdminBrokerProcessor."""

from dataclasses import asdict

from lockstep.broker.groups.coordination import Coordination
from lockstep.protocol.bodies import GroupSettings, ResetBody, ResetReply
from lockstep.protocol.codes import RequestCode
from lockstep.protocol.errors import BrokerSystemError, NoPermissionError
from lockstep.protocol.headers.clients import DeleteGroupHeader, ForgetProgressHeader, ForgetProgressReply
from lockstep.runtime.limits import MEMBER_BYTES_MAX
from lockstep.runtime.logs.log import get_logger
from lockstep.runtime.requests.dispatch import handles
from lockstep.runtime.requests.needs import DELETE, SUB, UPDATE, on_group, on_topic
from lockstep.runtime.requests.request import AuditedChange, HandlerResult, PendingResponse, Request
from lockstep.runtime.security.rights import Kind, resource

log = get_logger("broker")


class GroupChangesProcessor:
    """Passes changes of groups to GroupAdmin, and logs them."""

    def __init__(self, coordination: Coordination) -> None:
        self._coordination = coordination

    @handles(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, None, GroupSettings, needs=[on_group(UPDATE, name="group")])
    def configure(self, request: Request) -> HandlerResult:
        settings: GroupSettings = request.body
        self.store_settings(request, settings)
        return PendingResponse(request.reply(body=settings))

    def store_settings(self, request: Request, settings: GroupSettings) -> None:
        """Store the settings of a group, as the request asks."""
        peer, before = request.endpoint.peer, self._coordination.state.settings.get(settings.group)
        self._coordination.admin.set_settings(settings)
        named = resource(Kind.GROUP, settings.group)
        request.change = AuditedChange(named, None if before is None else asdict(before), asdict(settings))
        facts = {"subscription_policy": settings.subscription_policy.value, "consume_enable": settings.consume_enable}
        log.info("group.configured", group=settings.group, peer=peer, **facts)

    @handles(RequestCode.DELETE_SUBSCRIPTIONGROUP, DeleteGroupHeader, needs=[on_group(DELETE, name="group")], classic=True)
    def delete_group(self, request: Request) -> HandlerResult:
        """Delete the group. As in RocketMQ, deleting an unknown group succeeds."""
        header: DeleteGroupHeader = request.header
        with_progress = header.clean_offset or header.remove_offset
        try:
            count = self._coordination.admin.delete_group(header.group, with_progress=with_progress)
        except NoPermissionError as error:
            if request.is_native:
                raise
            raise BrokerSystemError(error.remark) from None  # RocketMQ's tools take NO_PERMISSION for a missing right
        facts = {"existed": count is not None, "with_progress": with_progress, "queues": count or 0}
        request.change = AuditedChange(resource(Kind.GROUP, header.group), after=facts)
        if count is not None:
            log.info("group.deleted", group=header.group, peer=request.endpoint.peer, with_progress=with_progress, queues=count)
        return PendingResponse(request.reply())

    @handles(RequestCode.FORGET_PROGRESS, ForgetProgressHeader, needs=[on_group(UPDATE)])
    def forget_progress(self, request: Request) -> HandlerResult:
        header: ForgetProgressHeader = request.header
        count = self._coordination.admin.forget_progress(header.consumer_group, header.topic)
        named = f"{resource(Kind.GROUP, header.consumer_group)}, {resource(Kind.TOPIC, header.topic)}"
        request.change = AuditedChange(named, after={"queues": count})
        if count:
            log.info("progress.forgotten", group=header.consumer_group, topic=header.topic, peer=request.endpoint.peer, queues=count)
        return PendingResponse(request.reply(ForgetProgressReply(count)))

    @handles(
        RequestCode.RESET_OFFSETS,
        None,
        ResetBody,
        needs=[on_group(UPDATE, name="group"), on_topic(SUB, UPDATE)],
        body_bytes_max=MEMBER_BYTES_MAX,
    )
    def reset(self, request: Request) -> HandlerResult:
        return PendingResponse(request.reply(body=reset_progress(self._coordination, request.body, request)))


def reset_progress(coordination: Coordination, body: ResetBody, request: Request) -> ResetReply:
    """Reset the progress of a group in a topic, as the request asks, and log what moved. Raises the errors of GroupAdmin.reset_progress."""
    reply = coordination.admin.reset_progress(body)
    moved = {before.queue_id: [before.offset, after.offset] for before, after in zip(reply.queues, body.queues, strict=True)}
    log.info("progress.reset", group=body.group, topic=body.topic, peer=request.endpoint.peer, queues=moved)
    offsets = [{queue.queue_id: queue.offset for queue in queues} for queues in (reply.queues, body.queues)]
    request.change = AuditedChange(f"{resource(Kind.GROUP, body.group)}, {resource(Kind.TOPIC, body.topic)}", *offsets)
    return reply
