# __shared__ has no counterpart in C++: such a variable belongs to the block, not to the thread. Lines stay lines.
#   extern __shared__ [attributes] T name[];     ->  the dynamic memory of the launch
#   __shared__ T name[a][b]..., name...;         ->  a declaration for each name, then
#   __shared__ [alignment] T name[a][b]...;      ->  memory that the first thread of the block to come here creates
s/extern +__shared__ +(__align__\([0-9]+\) +)?([A-Za-z_][A-Za-z0-9_]*) +([A-Za-z_][A-Za-z0-9_]*) *\[ *\] *;/\2* \3 = (\2*)cusim::dynamic_shared_memory();/
:name
s/(__shared__ +(__align__\([0-9]+\) +)?((volatile|unsigned|signed|long|short) +)*[A-Za-z_][A-Za-z0-9_:<>]* +)([A-Za-z_][A-Za-z0-9_]*( *\[[^]]*\])*) *, *([^;]*;)/\1\5; \1\7/
tname
s/__shared__ +(__align__\([0-9]+\) +)?(((volatile|unsigned|signed|long|short) +)*[A-Za-z_][A-Za-z0-9_:<>]*) +([A-Za-z_][A-Za-z0-9_]*)(( *\[[^]]*\])*) *;/auto\& \5 = cusim::shared_variable<\2\6, __COUNTER__>("\5");/g
