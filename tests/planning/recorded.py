"""Short programs in XLA's text format."""

# Three steps, in each of which an inner loop runs ceil((9 - 1) / 2) times.
LOOPS = """\
HloModule jit_train, is_scheduled=true, input_output_alias={ {0}: (0, {}, \
may-alias), {1}: (2, {}, may-alias) }, entry_computation_layout={(f32[8,128]\
{1,0:T(8,128)}, s32[]{:T(128)}, /*index=2*/f32[128]{0:T(128)})->(f32[8,128])}

FileNames
1 "train.py"

%add.1 (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %sum = f32[] add(%a, %b)
}

%inner_body (p: (s32[], f32[8,128])) -> (s32[], f32[8,128]) {
  %p = (s32[]{:T(128)}, f32[8,128]{1,0:T(8,128)}) parameter(0)
  %i = s32[]{:T(128)} get-tuple-element(%p), index=0
  %x = f32[8,128]{1,0:T(8,128)} get-tuple-element(%p), index=1
  %one.1 = s32[] constant(1)
  %next = s32[] add(%i, %one.1)
  %after = s32[] add(%one.1, %next)
  %tanh.1 = f32[8,128]{1,0:T(8,128)} tanh(%x), metadata={op_name="jit(f)/\
while/body/jvp(lstm)/tanh"}, backend_config={"window_config":{"estimated_\
cycles":"70"}}
  ROOT %t = (s32[], f32[8,128]{1,0:T(8,128)}) tuple(%after, %tanh.1)
}

%inner_condition (p.1: (s32[], f32[8,128])) -> pred[] {
  %p.1 = (s32[], f32[8,128]{1,0}) parameter(0)
  %i.1 = s32[] get-tuple-element(%p.1), index=0
  %nine = s32[] constant(9)
  ROOT %less = pred[] compare(%i.1, %nine), direction=LT
}

%body (q: (s32[], f32[8,128])) -> (s32[], f32[8,128]) {
  %q = (s32[], f32[8,128]{1,0}) parameter(0)
  %j = s32[] get-tuple-element(%q), index=0
  %y = f32[8,128]{1,0:T(8,128)} get-tuple-element(%q), index=1
  %start = s32[] constant(1)
  %copied = s32[] copy(%start)
  %state = (s32[], f32[8,128]{1,0}) tuple(%copied, %y)
  %inner = (s32[], f32[8,128]{1,0}) while(%state), condition=%inner_condition, \
body=%inner_body
  %z = f32[8,128]{1,0:T(8,128)} get-tuple-element(%inner), index=1
  %gradient = f32[8,128]{1,0:T(8,128)} all-reduce(%z), channel_id=1, \
replica_groups={{0,1,2,3}}, to_apply=%add.1, metadata={op_name="jit(f)/psum"}
  %square = f32[8,128]{1,0:T(8,128)} multiply(%gradient, %gradient), \
backend_config={"estimated_cycles":"100"}
  %step.1 = s32[] constant(1)
  %j.1 = s32[] add(%j, %step.1)
  ROOT %out = (s32[], f32[8,128]{1,0}) tuple(%j.1, %square)
}

%condition (q.1: (s32[], f32[8,128])) -> pred[] {
  %q.1 = (s32[], f32[8,128]{1,0}) parameter(0)
  %j.2 = s32[] get-tuple-element(%q.1), index=0
  %three = s32[] constant(3)
  ROOT %less.1 = pred[] compare(%j.2, %three), direction=LT
}

ENTRY %main (w: f32[8,128], n: s32[], b.1: f32[128]) -> (f32[8,128]) {
  %w = f32[8,128]{1,0:T(8,128)} parameter(0), metadata={op_name="w"}
  %n = s32[]{:T(128)} parameter(1)
  %b.1 = f32[128]{0:T(128)} parameter(2)
  %zero = s32[] constant(0)
  %first = (s32[], f32[8,128]{1,0}) tuple(%zero, %w)
  %loop = (s32[], f32[8,128]{1,0}) while(%first), condition=%condition, \
body=%body
  %last = f32[8,128]{1,0:T(8,128)} get-tuple-element(%loop), index=1
  %loss = f32[8,128]{1,0:T(8,128)} all-reduce(%last), channel_id=2, \
replica_groups={}, to_apply=%add.1
  ROOT %result = (f32[8,128]{1,0}) tuple(%loss)
}
"""


def entry(*instructions, others=""):
    """A program whose entry has these instructions."""
    lines = "\n".join(f"  {each}" for each in instructions)
    return f"HloModule m\n{others}\nENTRY %main () -> f32[] {{\n{lines}\n}}\n"
